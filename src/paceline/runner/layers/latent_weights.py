"""The linears of latent attention, for any device."""

from typing import Generic

import torch

from paceline.runner.layers.factory import L_co, LayerFactory
from paceline.runner.models.latent import LatentAttentionSpec


class LatentWeights(Generic[L_co]):
    """The linears before latent attention, and those between heads and latent vectors.

    query_latent   of the residual stream; None: queries are linears of the residual stream itself
    query          of all heads: what meets latents, and what rotates
    latent         latents, and then the keys that rotate
    keys           [heads, key_dim, rank], from queries to latent queries
    values         [heads, rank, value_dim], from latents to values
    """

    def __init__(self, factory: LayerFactory[L_co], spec: LatentAttentionSpec) -> None:
        self.query_latent, before = None, spec.norm
        if (latent := spec.query_latent) is not None:
            self.query_latent, before = factory.linear(latent.linear, spec.norm), latent.norm
        key_dim, rope_dim = spec.key_dim, spec.rope_dim
        of_head = torch.tensor(order(spec, key_dim))  # [key_dim + rope_dim]
        of_heads = torch.arange(spec.heads).unsqueeze(1) * (key_dim + rope_dim) + of_head
        self.query = factory.reordered(spec.query, of_heads.flatten(), before)
        latents = torch.tensor(order(spec, spec.rank))
        self.latent = factory.reordered(spec.latent, latents, spec.norm)
        expand = factory.matrix(spec.expand).dense().to(factory.dtype)
        expand = expand.view(spec.heads, key_dim + spec.value_dim, spec.rank)
        self.keys = expand[:, :key_dim].contiguous()
        self.values = expand[:, key_dim:].transpose(1, 2).contiguous()


def order(spec: LatentAttentionSpec, first: int) -> list[int]:
    """An order of numbers, the first of which stay, in which pair i of the rest is (x[i], x[i +
    half])."""
    rest = list(range(first, first + spec.rope_dim))
    return [*range(first), *(rest[::2] + rest[1::2] if spec.adjacent_pairs else rest)]
