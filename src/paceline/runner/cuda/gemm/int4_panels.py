"""Linears of 4-bit weights, as fast as they can be read, in CUDA C++ and with decoded weights.

The kernel is `int4_gemm.cu`. This module arranges weights for it, chooses its shape and launches
it.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.library import FactoredLinear, LibraryLinear
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights, Use
from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    SHARED_BYTES,
    Kernel,
    TensorMap,
    can_compile,
    expect,
    multiply,
    source_of,
)
from paceline.runner.tensors import processors_of
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import GroupedMatrix

PANEL = 128  # outputs and inputs of a panel
CODE_BYTES = PANEL * PANEL // 2
GROUPS = (32, 64, 128)  # inputs that share a scale
ZERO_BITS = 31  # the lowest bits of a scale: its zero
LEAST_ROWS = 8  # of a tile
TILES = 64, 96, 128  # most rows of a tile, if there are many
MOST_ROWS = 1024  # beyond, decoding the weights costs less than multiplying them
MOST_STAGES = 12


@dataclass(frozen=True, slots=True, eq=False)
class PanelMatrix(Matrix):
    """Codes of 4 bits as the threads of `int4_gemm.cu` read them.

    content  [outputs / 128, inputs / 128, bytes]: codes, then scales in float32 by groups and
             outputs, with their zeros in the lowest bits
    group    inputs that share a scale
    """

    content: Tensor
    group: int

    @staticmethod
    def of(matrix: GroupedMatrix) -> "PanelMatrix":
        (outputs, inputs), groups = matrix.shape, matrix.scale.shape[1]
        codes = torch.stack((matrix.weight & 15, matrix.weight >> 4), dim=-1)
        # An output is a panel, a warpgroup, a warp, an upper or lower half, a line. An input is a
        # panel, half of its steps, a step, an upper or lower half, a pair, one of two.
        parts = codes.view(outputs // PANEL, 2, 4, 2, 8, inputs // PANEL, 2, 4, 2, 4, 2)
        parts = parts.permute(0, 5, 1, 6, 2, 4, 9, 7, 10, 8, 3).flatten(2).flatten(1)
        packed = (parts[:, ::2] | parts[:, 1::2] << 4).view(outputs // PANEL, -1, CODE_BYTES)
        bits = matrix.scale.float().view(torch.int32) & ~ZERO_BITS | matrix.zero.int()
        per_panel = groups * PANEL // inputs
        scales = bits.view(outputs // PANEL, PANEL, -1, per_panel).permute(0, 2, 3, 1).contiguous()
        scale_bytes = scales.view(torch.uint8).view(*packed.shape[:2], -1)
        return PanelMatrix(torch.cat((packed, scale_bytes), dim=2), inputs // groups)

    @property
    def form(self) -> str:
        return f"int4 by groups of {self.group}"

    @property
    def shape(self) -> tuple[int, int]:
        return PANEL * self.content.shape[0], PANEL * self.content.shape[1]

    def dense(self) -> Tensor:
        (panels, across), per_panel = self.content.shape[:2], PANEL // self.group
        codes, scales = self.content[..., :CODE_BYTES], self.content[..., CODE_BYTES:]
        parts = torch.stack((codes & 15, codes >> 4), dim=-1).view(panels, across, *SPREAD)
        found = parts.permute(0, 2, 4, 10, 5, 1, 3, 7, 9, 6, 8).reshape(self.shape)
        bits = scales.contiguous().view(torch.int32).view(panels, across, per_panel, PANEL)
        bits = bits.permute(0, 3, 1, 2).reshape(len(found), -1, 1)
        groups = found.view(len(found), -1, self.group) - (bits & ZERO_BITS).float()
        return groups.mul_((bits & ~ZERO_BITS).view(torch.float32)).view(self.shape)


SPREAD = (2, 2, 4, 8, 4, 4, 2, 2, 2)  # how the codes of a panel are ordered


def panels_of(weights: LinearWeights) -> PanelMatrix | None:
    """The weights in panels, if they can be; they are kept so."""
    matrix = weights.matrix
    if isinstance(matrix, GroupedMatrix) and weights.dtype == torch.bfloat16:
        (outputs, inputs), groups = matrix.shape, matrix.scale.shape[1]
        is_whole = inputs % PANEL == 0 and outputs % PANEL == 0 and inputs // groups in GROUPS
        if is_whole and can_compile(matrix.weight.device):
            weights.matrix = matrix = PanelMatrix.of(matrix)
    return matrix if isinstance(matrix, PanelMatrix) else None


class Int4Panels(FactoredLinear):
    """Some rows."""

    name = "int4_panels"
    most_rows = MOST_ROWS

    def __init__(self, weights: LinearWeights, matrix: PanelMatrix) -> None:
        super().__init__(weights)
        self._matrix, device = matrix, matrix.content.device
        self._processors = processors_of(device)
        blocks = matrix.content.shape[0]
        tiles = MOST_ROWS // TILES[-1]
        self._counters = torch.zeros(2 * blocks * tiles, dtype=torch.int32, device=device)

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Int4Panels | None":
        """All uses."""
        matrix = panels_of(weights)
        return None if matrix is None else cls(weights, matrix)

    def multiplied(self, x: Tensor) -> Tensor:
        out = x.new_empty((len(x), self._matrix.shape[0]))
        self._run(x, out, is_added=False)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(self.factored(x), total, is_added=True)
        if self._weights.bias is not None:
            total.add_(self._weights.bias)

    def _run(self, x: Tensor, out: Tensor, is_added: bool) -> None:
        (rows, inputs), outputs = x.shape, out.shape[1]
        shape = LaunchShape.of(rows, outputs, self._matrix.group)
        expect(kernel_for(replace(shape, rows=most), is_added) for most in TILES)
        tiles = -(-rows // shape.rows)
        units = outputs // shape.lines * tiles * (inputs // PANEL)
        programs = min(self._processors, units)
        parts = torch.empty(programs * 2 * shape.rows * shape.lines, device=x.device)
        given = TensorMap(x, (min(rows, shape.rows), PANEL // 2))
        sizes = rows, tiles, inputs, outputs
        kernel_for(shape, is_added).launch(
            programs, (self._matrix.content, given, out, parts, self._counters, *sizes)
        )


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Rows of a tile, warpgroups, and inputs that share a scale."""

    rows: int
    warpgroups: int
    group: int

    @staticmethod
    def of(rows: int, outputs: int, group: int) -> "LaunchShape":
        """For so many rows. More than a tile has are divided evenly."""
        if rows <= TILES[0]:
            rows = max(triton.next_power_of_2(rows), LEAST_ROWS)
        else:
            each = -(-rows // -(-rows // TILES[-1]))
            rows = next(most for most in TILES if each <= most)
        return LaunchShape(rows, 4 if outputs % (2 * PANEL) == 0 else 2, group)

    @property
    def lines(self) -> int:
        """Outputs of a block."""
        return self.warpgroups * PANEL // 2

    @property
    def stage_bytes(self) -> int:
        panel = CODE_BYTES + PANEL // self.group * PANEL * 4
        bytes_ = self.rows * PANEL * 2 + self.warpgroups // 2 * panel
        return -(-bytes_ // ALIGNED) * ALIGNED

    @property
    def stages(self) -> int:
        return min((SHARED_BYTES - ALIGNED) // self.stage_bytes, MOST_STAGES)


@cache
def kernel_for(shape: LaunchShape, is_added: bool) -> Kernel:
    shared = ALIGNED + shape.stages * shape.stage_bytes
    return Kernel(source_for(shape, is_added), "int4_gemm", shape.warpgroups * 128 + 128, shared)


def source_for(shape: LaunchShape, is_added: bool) -> str:
    sizes: dict[str, int | str] = {
        "ROWS": shape.rows,
        "GROUPS": shape.warpgroups,
        "GROUP": shape.group,
        "STAGES": shape.stages,
        "ADDED": int(is_added),
    }
    return source_of("int4_gemm", sizes, multiply("multiply", shape.rows, is_held=True), "tiles")


class PanelsDecoded(LibraryLinear):
    """Many rows: weights are decoded for each step."""

    name = "int4_panels_decoded"

    def __init__(self, weights: LinearWeights, matrix: PanelMatrix) -> None:
        super().__init__(weights)
        self._matrix = matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "PanelsDecoded | None":
        """All uses."""
        matrix = panels_of(weights)
        return None if matrix is None else cls(weights, matrix)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        matrix, factor = self._matrix, self._weights.factor
        panels, across, size = matrix.content.shape
        out = torch.empty(matrix.shape, dtype=dtype, device=matrix.content.device)
        words = matrix.content.view(torch.int32)
        _decode[(panels, across, 4)](
            words,
            out if factor is None else factor,
            out,
            out.shape[1],
            SIZE=size // 4,
            GROUP=matrix.group,
            FACTORED=factor is not None,
            num_warps=4,
        )
        return out


@triton.jit
def _decode(
    words, factor, out, inputs, SIZE: tl.constexpr, GROUP: tl.constexpr, FACTORED: tl.constexpr
):
    """Decode a quarter of the outputs of a panel; see `PanelMatrix.of`."""
    panel = words + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * SIZE
    line = (tl.program_id(2) * 32 + tl.arange(0, 32))[:, None]
    index = tl.arange(0, 128)[None, :]
    step, half = index // 16, index % 16 // 8
    warp, lower = line % 64 // 16, line % 16 // 8
    thread = warp * 32 + line % 8 * 4 + index % 8 // 2
    at = ((line // 64 * 2 + step // 4) * 128 + thread) * 4 + step % 4
    shift = 4 * lower + 8 * half + 16 * (index % 2)
    code = (tl.load(panel + at) >> shift) & 15
    scale = tl.load(panel + 2048 + index // GROUP * 128 + line)
    found = (code - (scale & 31)).to(tl.float32) * (scale & -32).to(tl.float32, bitcast=True)
    first = tl.program_id(1) * 128 + index
    if FACTORED:
        found *= tl.load(factor + first)
    row = (tl.program_id(0) * 128 + line).to(tl.int64)
    tl.store(out + row * inputs + first, found.to(out.dtype.element_ty))
