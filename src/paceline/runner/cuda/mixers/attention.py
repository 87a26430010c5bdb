"""Attention of a layer on a GPU."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from paceline.runner.cuda.adapters import Beside, nowhere
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.kernels.attention.heads import (
    HeadRotation,
    WholeNorms,
    gate_heads,
    rotate,
    rotate_and_store,
)
from paceline.runner.cuda.kernels.layers import DeferredNorm
from paceline.runner.cuda.linears import CudaLinear, NormedLinear, apart, residual_linear
from paceline.runner.cuda.mixers.mixer import CudaLayerContext, CudaMixer
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.architecture import AttentionSpec
from paceline.runner.models.rope import Rope

LATE_ROWS = 4  # up to which attention rotates, if the linear before it is ordered


class CudaAttention(CudaMixer):
    """Attention. Gates, queries, keys and values are adjacent, in this order."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: AttentionSpec,
        layer: int,
        tables: Mapping[Rope, RotaryTable],
        beside: Beside = nowhere,
    ) -> None:
        self._spec, self._layer = spec, layer
        self._before, norm = apart(factory, spec.norm)
        self._qkv = NormedLinear(factory.qkv(spec), norm, beside("qkv"))
        self._output = residual_linear(factory, spec.output, spec.output_norm, beside("output"))
        self._sinks = None if spec.sinks is None else factory.read(spec.sinks)  # [heads]
        self._rotary = tables[spec.rope]
        self._rotation = rotation_of(factory, spec, self._rotary)
        self._whole = whole_norms(factory, spec)

    def kernels(self) -> dict[str, str]:
        return {"qkv": str(self._qkv), "output": str(self._output)}

    def add_to(self, hidden: Tensor, mixed: Tensor, adapters: Tensor | None) -> None:
        self._output(hidden, mixed, adapters)

    def __call__(self, hidden: Tensor, step: CudaLayerContext) -> Tensor:
        spec, attention = self._spec, step.attention
        heads, late = self._heads(hidden, step.adapters)
        qkv = heads[:, spec.gates :]
        rotation, by_row = self._rotation, step.rotary.get(self._rotary)
        if by_row is not None:
            rotation = replace(rotation, cos_sin=by_row, is_by_row=True)
        layer = self._layer if spec.reads is None else spec.reads
        how = layer, spec.window, spec.scale, spec.score_cap, self._sinks
        if attention.rotates and not late.width and self._can_rotate_late(hidden, step):
            seen = attention.attend_new(qkv, rotation, *how)
        elif spec.reads is not None:
            rotate(qkv, rotation, late, step.position)
            seen = attention.attend(qkv, *how)
        else:
            cells = step.cells[step.kv.groups.group[layer]]
            rotate_and_store(qkv, rotation, late, step.position, cells, step.kv, layer)
            seen = attention.attend(qkv[:, : spec.heads], *how)
        if spec.gated:
            gate_heads(seen, heads[:, : spec.gates], late)
        return seen.view(len(hidden), -1)  # [positions, heads * head_dim]

    def store(self, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore) -> None:
        heads, late = self._heads(hidden, None)
        qkv = heads[:, self._spec.gates :]
        rotate_and_store(qkv, self._rotation, late, position, cells, kv, self._layer)

    def _heads(self, hidden: Tensor, adapters: Tensor | None) -> tuple[Tensor, DeferredNorm]:
        """Gates, queries, keys and values before the rotation, [positions, …, head_dim]."""
        found, late = self._qkv(self._before(hidden), adapters)
        heads = found.view(len(hidden), -1, self._spec.head_dim)
        if self._whole is not None:
            self._whole.apply_to(heads[:, self._spec.gates :], self._spec.heads, late)
        return heads, late

    def _can_rotate_late(self, hidden: Tensor, step: CudaLayerContext) -> bool:
        """Whether the kernel of attention may rotate queries and keys. It reads the store before
        the linear has ended, which must be ordered."""
        rows, spec = len(hidden), self._spec
        is_few = rows <= LATE_ROWS and step.adapters is None and self._qkv.is_ordered(rows)
        return is_few and self._whole is None and spec.reads is None


def rotation_of(
    factory: LayerFactory[CudaLinear], spec: AttentionSpec, table: RotaryTable
) -> HeadRotation:
    norms = spec.head_norms
    found = HeadRotation(table.by_position, None, 0.0, growth=spec.growth)
    if spec.value_norm is not None:
        found = replace(found, value_floor=(spec.head_dim * spec.value_norm) ** 0.5)
    if norms is None or norms.whole:
        return found
    factor = factory.head_factor(spec, norms).to(factory.dtype)
    return replace(found, factor=factor, floor=norms.floor, rotates_first=norms.rotated)


def whole_norms(factory: LayerFactory[CudaLinear], spec: AttentionSpec) -> WholeNorms | None:
    """The norms over all heads, if there are some."""
    norms = spec.head_norms
    if norms is None or not norms.whole:
        return None
    factor = factory.head_factor(spec, norms).to(factory.dtype)
    return WholeNorms(factor, norms.query.floor, norms.key.floor)
