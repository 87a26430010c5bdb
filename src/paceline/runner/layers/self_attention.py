"""Attention as a layer: queries, keys and values, their rotation, and the write to the store."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.runner.attention.backend import Prepared
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.rotary import Rotation
from paceline.runner.models.architecture import AttentionSpec
from paceline.runner.models.rope import Rope


@dataclass(frozen=True, slots=True, eq=False)
class LayerContext:
    """What all layers read in one step."""

    rotations: dict[Rope, Rotation]
    kv: KVStore
    cells: Sequence[Tensor]  # by layer: [positions], where in the store it writes
    attention: Prepared


class SelfAttention:
    """Queries, keys and values are adjacent, so that rotation and write are one operation each.

    qkv   | q q q q q q q q q | k k k | v v v |      [positions, heads + 2 * kv_heads, head_dim]
            rotated ────────────────┘ written ┘
                                written ──────┘
    """

    def __init__(self, factory: LayerFactory, spec: AttentionSpec, layer: int) -> None:
        self._spec, self._layer = spec, layer
        self._rotated = spec.heads + spec.kv_heads
        self.qkv = factory.qkv(spec)
        self.norm = factory.head_norm(spec)
        self.output = factory.summed(spec.output)
        self._sinks = None if spec.sinks is None else factory.read(spec.sinks)  # [heads]

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        """Everything but the product with `output`, which the layer adds to the residual stream."""
        spec, layer = self._spec, self._layer
        qkv = self.qkv(x).view(len(x), -1, spec.head_dim)
        rotated = qkv[:, : self._rotated]
        if self.norm is not None:
            self.norm.apply_to(rotated)
        context.rotations[spec.rope].turn(rotated)
        context.kv.put(context.cells[layer], qkv[:, spec.heads :])
        query = qkv[:, : spec.heads]
        how = spec.window, spec.scale, spec.score_cap, self._sinks
        seen = context.attention.attend(query, layer, *how)
        return seen.view(len(x), -1)  # [positions, heads * head_dim]
