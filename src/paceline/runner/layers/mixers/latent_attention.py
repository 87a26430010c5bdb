"""Multi-head latent attention (MLA) in torch."""

import torch
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.latent_weights import LatentWeights
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
        self._weights = LatentWeights(factory, spec)
        if spec.query_latent is not None:
            self._query_norm = factory.input_norm(spec.query_latent.norm)
        self._latent_norm = factory.norm(spec.latent_norm)
        self._output = factory.summed(spec.output)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        spec, rank, weights = self._spec, self._spec.rank, self._weights
        rotation = context.rotations[spec.rope]
        new = weights.latent(x).unsqueeze(1)  # [positions, 1, rank + rope_dim]
        new[..., :rank] = self._latent_norm(new[..., :rank])
        rotation.rotate(new[..., rank:])
        context.kv.put(context.cells[self._layer], new)
        query = weights.query(x if weights.query_latent is None else self._normed(x))
        query = query.view(len(x), spec.heads, -1)  # [positions, heads, key_dim + rope_dim]
        rotated = query[..., spec.key_dim :]
        rotation.rotate(rotated)
        latent = by_head(query[..., : spec.key_dim], weights.keys)
        asked = torch.cat((latent, rotated), dim=-1)
        seen = context.attention.attend(asked, self._layer, None, spec.scale)[..., :rank]
        return by_head(seen, weights.values).flatten(1)  # [positions, heads * value_dim]

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)

    def _normed(self, x: Tensor) -> Tensor:
        assert self._weights.query_latent is not None
        return self._query_norm(self._weights.query_latent(x))


def by_head(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply [positions, heads, inputs] by the weights of each head [heads, inputs, outputs]."""
    return torch.bmm(x.transpose(0, 1), weights).transpose(0, 1)
