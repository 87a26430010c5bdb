"""Linears of 4-bit weights: some rows with weights decoded in registers, many rows by the library.

Weights are multiplied as they are, as integers; the result of a group is multiplied by its scale.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.few_rows import FewRows, add_up
from paceline.runner.cuda.gemm.library import LibraryLinear
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights, Use
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import GroupedMatrix

LINES = 64  # outputs of a program, as many as tensor cores take at a time
HALF = 64  # inputs between the two of a byte, if a group has so many
MOST_ROWS = 64
HALVES = (torch.bfloat16, torch.float16)
GROUPS = (32, 64, 128)  # inputs
MIDDLE = 128  # a number of 16 bits whose lowest 4 bits are a code is 128 + code


@dataclass(frozen=True, slots=True, eq=False)
class HalvedMatrix(Matrix):
    """Codes of 4 bits as the kernel reads them: the two of a byte are `half` inputs apart.

    weight   [outputs, inputs / 2]; uint8
    scale    [groups, outputs] in float32
    zero     [groups, outputs] in bfloat16, from 128 on
    group    inputs
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor
    group: int

    @staticmethod
    def of(matrix: GroupedMatrix) -> "HalvedMatrix":
        (outputs, inputs), groups = matrix.shape, matrix.scale.shape[1]
        half = min(inputs // groups, HALF)
        codes = torch.stack((matrix.weight & 15, matrix.weight >> 4), dim=-1)
        low, high = codes.view(outputs, -1, 2, half).unbind(dim=2)
        zero = (matrix.zero.float() + MIDDLE).to(torch.bfloat16)
        return HalvedMatrix(
            (low | high << 4).view(outputs, -1),
            matrix.scale.t().contiguous(),
            zero.t().contiguous(),
            inputs // groups,
        )

    @property
    def form(self) -> str:
        return f"int4 by groups of {self.group}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], 2 * self.weight.shape[1]

    @property
    def half(self) -> int:
        return min(self.group, HALF)

    def dense(self) -> Tensor:
        parts = self.weight.view(len(self.weight), -1, self.half)
        codes = torch.stack((parts & 15, parts >> 4), dim=2).view(self.shape)
        groups = codes.view(len(codes), -1, self.group).float()
        zero, scale = (one.float().t().unsqueeze(-1) for one in (self.zero, self.scale))
        return groups.sub_(zero - MIDDLE).mul_(scale).view(self.shape)


def halved(weights: LinearWeights) -> HalvedMatrix | None:
    """The weights as the kernels read them, if they can be; they are kept so."""
    matrix = weights.matrix
    if isinstance(matrix, GroupedMatrix) and weights.dtype in HALVES:
        outputs, inputs = matrix.shape
        group = inputs // matrix.scale.shape[1]
        if group in GROUPS and inputs % (2 * HALF) == 0 and outputs % LINES == 0:
            weights.matrix = matrix = HalvedMatrix.of(matrix)
    return matrix if isinstance(matrix, HalvedMatrix) else None


class Int4Few(FewRows):
    """Some rows."""

    name = "int4_few"
    most_rows = MOST_ROWS

    def __init__(self, weights: LinearWeights, matrix: HalvedMatrix) -> None:
        super().__init__(weights, LINES, 2 * HALF)
        self._matrix = matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Int4Few | None":
        """All uses."""
        matrix = halved(weights) if weights.dtype == torch.bfloat16 else None
        return None if matrix is None else cls(weights, matrix)

    def launch(
        self, x: Tensor, out: Tensor, parts: Tensor, factor: Tensor | None, is_added: bool
    ) -> None:
        (rows, inputs), outputs = x.shape, out.shape[1]
        bias, matrix = self._weights.bias, self._matrix
        _few[(outputs // LINES, self.splits)](
            x,
            matrix.weight,
            matrix.scale,
            matrix.zero,
            x if factor is None else factor,
            x if bias is None else bias,
            out,
            parts,
            self.ended,
            rows,
            outputs,
            INPUTS=inputs,
            ROWS=max(triton.next_power_of_2(rows), 16),
            LINES=LINES,
            HALF=matrix.half,
            GROUP=matrix.group,
            SPLITS=self.splits,
            FACTORED=factor is not None,
            BIASED=bias is not None,
            ADDED=is_added,
            num_warps=4,
            num_stages=4,
            launch_pdl=True,
        )


class Int4Decoded(LibraryLinear):
    """Many rows: weights are decoded for each step."""

    name = "int4_decoded"

    def __init__(self, weights: LinearWeights, matrix: HalvedMatrix) -> None:
        super().__init__(weights)
        self._matrix = matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Int4Decoded | None":
        """All uses."""
        matrix = halved(weights)
        return None if matrix is None else cls(weights, matrix)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        matrix, factor = self._matrix, self._weights.factor
        outputs, inputs = matrix.shape
        out = torch.empty((outputs, inputs), dtype=dtype, device=matrix.weight.device)
        _decode[(outputs, triton.cdiv(inputs, 2048))](
            matrix.weight,
            matrix.scale,
            matrix.zero,
            out if factor is None else factor,
            out,
            outputs,
            inputs,
            HALF=matrix.half,
            GROUP=matrix.group,
            BYTES=1024,
            FACTORED=factor is not None,
            num_warps=4,
        )
        return out


@triton.jit
def less_zeros(content, zero):
    """Both codes of bytes, less their zeros, in 16 bits. A number of 16 bits is 128 + code if the
    code is its lowest bits."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 first, second;
        prmt.b32 first, $4, 0, 0x4140;
        prmt.b32 second, $4, 0, 0x4342;
        lop3.b32 $0, first, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 $1, second, 0x000f000f, 0x43004300, 0xea;
        shr.u32 first, first, 4;
        shr.u32 second, second, 4;
        lop3.b32 $2, first, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 $3, second, 0x000f000f, 0x43004300, 0xea;
        sub.rn.bf16x2 $0, $0, $5;
        sub.rn.bf16x2 $1, $1, $6;
        sub.rn.bf16x2 $2, $2, $5;
        sub.rn.bf16x2 $3, $3, $6;
        }
        """,
        "=&r,=&r,=&r,=&r,r,r,r",
        [content, zero],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit(do_not_specialize=["rows"])
def _few(
    x,
    weight,
    scale,
    zero,
    factor,
    bias,
    out,
    parts,
    ended,
    rows,
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    FACTORED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    tile, split = tl.program_id(0), tl.program_id(1)
    row, line = tl.arange(0, ROWS), tile * LINES + tl.arange(0, LINES)
    share: tl.constexpr = INPUTS // SPLITS
    index = split * share + tl.arange(0, HALF)
    there = (row < rows)[:, None]
    values = x + row[:, None] * INPUTS + index[None, :]
    spot = split * share // 2 + tl.arange(0, HALF)
    codes = weight + line.to(tl.int64)[:, None] * (INPUTS // 2) + spot[None, :]
    found = tl.zeros([LINES, ROWS], tl.float32)
    for at in range(0, share, 2 * HALF):
        first = tl.load(values + at, mask=there, other=0.0)
        second = tl.load(values + at + HALF, mask=there, other=0.0)
        if FACTORED:
            by = tl.load(factor + index + at)
            first = (first.to(tl.float32) * by[None, :]).to(x.dtype.element_ty)
            by = tl.load(factor + index + at + HALF)
            second = (second.to(tl.float32) * by[None, :]).to(x.dtype.element_ty)
        content = tl.load(codes + at // 2)
        group = (split * share + at) // GROUP * outputs + line
        if GROUP > HALF:
            low, high = less_zeros(content, tl.load(zero + group)[:, None])
            part = tl.dot(low, tl.trans(first))
            part = tl.dot(high, tl.trans(second), part)
            found += part * tl.load(scale + group)[:, None]
        else:
            low, _ = less_zeros(content, tl.load(zero + group)[:, None])
            _, high = less_zeros(content, tl.load(zero + group + outputs)[:, None])
            found += tl.dot(low, tl.trans(first)) * tl.load(scale + group)[:, None]
            found += tl.dot(high, tl.trans(second)) * tl.load(scale + group + outputs)[:, None]
    add_up(tl.trans(found), out, parts, ended, bias, line, rows, outputs, SPLITS, BIASED, ADDED)


@triton.jit
def _decode(
    weight,
    scale,
    zero,
    factor,
    out,
    outputs,
    inputs,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    BYTES: tl.constexpr,
    FACTORED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    spot = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    inside = spot < inputs // 2
    content = tl.load(weight + row * (inputs // 2) + spot, mask=inside, other=0).to(tl.int32)
    first = spot // HALF * 2 * HALF + spot % HALF
    for half in tl.static_range(2):
        index = first + half * HALF
        group = index // GROUP * outputs + row
        code = ((content >> 4 * half) & 15).to(tl.float32) + 128.0
        code -= tl.load(zero + group, mask=inside, other=0.0).to(tl.float32)
        found = code * tl.load(scale + group, mask=inside, other=0.0)
        if FACTORED:
            found *= tl.load(factor + index, mask=inside, other=0.0)
        tl.store(out + row * inputs + index, found.to(out.dtype.element_ty), mask=inside)
