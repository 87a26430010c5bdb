"""Self-attention in torch."""

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.norm import add_linear
from paceline.runner.models.architecture import AttentionSpec
from paceline.runner.models.rope import QueryGrowth


class SelfAttention:
    """Self-attention. Queries, keys and values are adjacent, so rotation and write are one
    operation each.

    qkv   | gates | q q q q q q q q q | k k k | v v v |      [positions, …, head_dim]
                    rotated ────────────────┘ written ┘
                                        written ──────┘
    """

    def __init__(self, factory: LayerFactory[Linear], spec: AttentionSpec, layer: int) -> None:
        self._spec, self._layer = spec, layer
        self._rotated = spec.heads + spec.own_kv_heads
        self.qkv = factory.qkv(spec)
        self.norm = factory.head_norm(spec)
        self._value_norm = factory.value_norm(spec)
        self._norms_rotated = spec.head_norms is not None and spec.head_norms.rotated
        self.output = factory.summed(spec.output)
        self.output_norm = factory.optional_norm(spec.output_norm)
        self._sinks = None if spec.sinks is None else factory.read(spec.sinks)  # [heads]

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        spec, layer = self._spec, self._layer
        found = self.qkv(x).view(len(x), -1, spec.head_dim)
        gates, qkv = found[:, : spec.gates], found[:, spec.gates :]
        rotated = qkv[:, : self._rotated]
        rotation = context.rotations[spec.rope]
        if self._norms_rotated:
            rotation.rotate(rotated)
        if self.norm is not None:
            self.norm.apply_to(rotated)
        if not self._norms_rotated:
            rotation.rotate(rotated)
        if spec.reads is None:
            if self._value_norm is not None:
                self._value_norm.apply_to(qkv[:, self._rotated :])
            context.kv.put(context.cells[layer], qkv[:, spec.heads :])
        else:
            layer = spec.reads
        query = qkv[:, : spec.heads]
        if spec.growth is not None:
            query = query * grown(context.position, spec.growth).to(query.dtype)[:, None, None]
        how = spec.window, spec.scale, spec.score_cap, self._sinks
        seen = context.attention.attend(query, layer, *how)
        if spec.gated:
            seen = seen * gates.sigmoid()
        return seen.view(len(x), -1)  # [positions, heads * head_dim]

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        add_linear(hidden, mixed, self.output, self.output_norm)


def grown(position: Tensor, growth: QueryGrowth) -> Tensor:
    """The factor of queries at positions, in float32."""
    lengths = (position + growth.offset) // growth.length
    return lengths.float().log1p_().mul_(growth.factor).add_(1.0)
