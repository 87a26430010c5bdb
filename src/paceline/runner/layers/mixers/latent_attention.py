"""Multi-head latent attention (MLA) in torch."""

import torch
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.models.latent import LatentAttentionSpec


class LatentAttention:
    """Attention between latent vectors, which all heads share.

    A score is query · (keys @ latent) + rotated query · rotated key, and the first part is the same
    as (query @ keys) · latent. So queries become latent, and a cell is key and value of all heads:

        query   | query @ keys, `rank` numbers | rotated part of the query |
        cell    | latent                       | rotated key               |

    What attention computes is a sum of latents. A last linear of each head makes values of it.
    """

    def __init__(
        self, factory: LayerFactory[Linear], spec: LatentAttentionSpec, layer: int
    ) -> None:
        self._spec, self._layer = spec, layer
        self._query_latent, before = None, spec.norm
        if (latent := spec.query_latent) is not None:
            self._query_latent = factory.linear(latent.linear, spec.norm)
            self._query_norm, before = factory.input_norm(latent.norm), latent.norm
        key_dim, rope_dim = spec.key_dim, spec.rope_dim
        of_head = torch.tensor(order(spec, key_dim))  # [key_dim + rope_dim]
        of_heads = torch.arange(spec.heads).unsqueeze(1) * (key_dim + rope_dim) + of_head
        self._query = factory.reordered(spec.query, of_heads.flatten(), before)
        self._latent = factory.reordered(
            spec.latent, torch.tensor(order(spec, spec.rank)), spec.norm
        )
        self._latent_norm = factory.norm(spec.latent_norm)
        expand = factory.matrix(spec.expand).dense().to(factory.dtype)
        expand = expand.view(spec.heads, key_dim + spec.value_dim, spec.rank)
        self._keys = expand[:, :key_dim].contiguous()  # [heads, key_dim, rank]
        self._values = expand[:, key_dim:].transpose(1, 2).contiguous()  # [heads, rank, value_dim]
        self._output = factory.summed(spec.output)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        spec, rank = self._spec, self._spec.rank
        rotation = context.rotations[spec.rope]
        new = self._latent(x).unsqueeze(1)  # [positions, 1, rank + rope_dim]
        new[..., :rank] = self._latent_norm(new[..., :rank])
        rotation.rotate(new[..., rank:])
        context.kv.put(context.cells[self._layer], new)
        query = self._query(x if self._query_latent is None else self._normed(x))
        query = query.view(len(x), spec.heads, -1)  # [positions, heads, key_dim + rope_dim]
        rotated = query[..., spec.key_dim :]
        rotation.rotate(rotated)
        latent = by_head(query[..., : spec.key_dim], self._keys)
        asked = torch.cat((latent, rotated), dim=-1)
        seen = context.attention.attend(asked, self._layer, None, spec.scale)[..., :rank]
        return by_head(seen, self._values).flatten(1)  # [positions, heads * value_dim]

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)

    def _normed(self, x: Tensor) -> Tensor:
        assert self._query_latent is not None
        return self._query_norm(self._query_latent(x))


def by_head(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply [positions, heads, inputs] by the weights of each head [heads, inputs, outputs]."""
    return torch.bmm(x.transpose(0, 1), weights).transpose(0, 1)


def order(spec: LatentAttentionSpec, first: int) -> list[int]:
    """An order of numbers, the first of which stay, in which pair i of the rest is (x[i], x[i +
    half])."""
    rest = list(range(first, first + spec.rope_dim))
    return [*range(first), *(rest[::2] + rest[1::2] if spec.adjacent_pairs else rest)]
