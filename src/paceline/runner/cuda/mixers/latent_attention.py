"""Multi-head latent attention (MLA) on a GPU."""

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.gemm.fixed_tiles import multiply_by_head
from paceline.runner.cuda.gemm.linear_kernel import Use
from paceline.runner.cuda.kernels.attention.latent_heads import LatentRotation
from paceline.runner.cuda.linears import CudaLinear, kernel_norm, residual_linear
from paceline.runner.cuda.mixers.mixer import CudaLayerContext, CudaMixer
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.latent_weights import LatentWeights
from paceline.runner.models.latent import LatentAttentionSpec
from paceline.runner.models.rope import Rope


class CudaLatentAttention(CudaMixer):
    """Attention between latent vectors: see `layers.mixers.latent_attention`. Rows of any length
    have latent queries."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: LatentAttentionSpec,
        layer: int,
        tables: Mapping[Rope, RotaryTable],
    ) -> None:
        self._spec, self._layer = spec, layer
        self._before = kernel_norm(factory, spec.norm)
        weights = LatentWeights(factory, spec)
        self._query, self._latent = weights.query, weights.latent
        kind = FixedHeads if factory.is_invariant else HeadLinears
        self._keys, self._values = kind(weights.keys), kind(weights.values)
        self._query_latent, self._query_norm = weights.query_latent, None
        if spec.query_latent is not None:
            self._query_norm = kernel_norm(factory, spec.query_latent.norm)
        self._output = residual_linear(factory, spec.output, None)
        factor = factory.factor(spec.latent_norm)
        table = tables[spec.rope].by_position
        self._rotation = LatentRotation(table, factor, spec.latent_norm.floor)

    def kernels(self) -> dict[str, str]:
        found = {"query": self._query, "latent": self._latent}
        if self._query_latent is not None:
            found["query latent"] = self._query_latent
        plain = {name: str(one.choice(Use.PLAIN)) for name, one in found.items()}
        return {**plain, "output": str(self._output)}

    def add_to(self, hidden: Tensor, mixed: Tensor, adapters: Tensor | None) -> None:
        self._output(hidden, mixed, adapters)

    def store(self, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore) -> None:
        latent = self._latent(self._before(hidden))
        self._rotation.store(latent, position, cells, kv, self._layer)

    def __call__(self, hidden: Tensor, step: CudaLayerContext) -> Tensor:
        spec, n, layer = self._spec, len(hidden), self._layer
        x = self._before(hidden)
        cells = step.cells[step.kv.groups.group[layer]]
        self._rotation.store(self._latent(x), step.position, cells, step.kv, layer)
        query = self._queries(x).view(n, spec.heads, -1)  # [n, heads, key_dim + rope_dim]
        asked = query.new_empty(n, spec.heads, spec.rank + spec.rope_dim)
        self._keys(query[..., : spec.key_dim], asked[..., : spec.rank])
        self._rotation.rotate_into(asked, query, step.position)
        seen = step.attention.attend(asked, layer, None, spec.scale)  # [n, heads, rank]
        out = seen.new_empty(n, spec.heads, spec.value_dim)
        self._values(seen, out)
        return out.flatten(1)

    def _queries(self, x: Tensor) -> Tensor:
        if self._query_latent is None or self._query_norm is None:
            return self._query(x)
        return self._query(self._query_norm(self._query_latent(x)))


class HeadLinears:
    """A linear for each head, of weights [heads, inputs, outputs]."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Multiply [positions, heads, inputs] to [positions, heads, outputs]."""
        torch.bmm(x.transpose(0, 1), self._weights, out=out.transpose(0, 1))


class FixedHeads(HeadLinears):
    """The same, with the same bits for any number of positions."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__(weights.transpose(1, 2).contiguous())

    def __call__(self, x: Tensor, out: Tensor) -> None:
        multiply_by_head(x, self._weights, out)
