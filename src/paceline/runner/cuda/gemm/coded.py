"""Linears of codes in groups of inputs: int4 and int8, GGUF types, NVFP4 and MXFP4.

Codes are multiplied as they are, and the result of a group by its step; but 4-bit floating-point
numbers are multiplied by their steps first, which is exact in bfloat16. The offset of a group is
multiplied by the sum of its inputs.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917, PLR2004
# Parameters of kernels have no types.
# pyright: standard

from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.coded_matrix import LINES, KernelMatrix
from paceline.runner.cuda.gemm.few_rows import FewRows, add_up
from paceline.runner.cuda.gemm.library import LibraryLinear
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights, Use

MOST_ROWS = 64
HALVES = (torch.bfloat16, torch.float16)


def coded(weights: LinearWeights) -> KernelMatrix | None:
    """The weights as the kernels read them, if they can be; they are kept so."""
    found = KernelMatrix.of(weights.matrix) if weights.dtype in HALVES else None
    if found is not None:
        weights.matrix = found
    return found


class CodedFew(FewRows):
    """Some rows."""

    name = "coded_few"
    most_rows = MOST_ROWS

    def __init__(self, weights: LinearWeights, matrix: KernelMatrix) -> None:
        super().__init__(weights, LINES, matrix.chunk)
        self._matrix = matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "CodedFew | None":
        """All uses."""
        matrix = coded(weights)
        return None if matrix is None else cls(weights, matrix)

    def launch(
        self, x: Tensor, out: Tensor, parts: Tensor, factor: Tensor | None, is_added: bool
    ) -> None:
        (rows, inputs), outputs = x.shape, out.shape[1]
        bias, matrix = self._weights.bias, self._matrix
        _few[(outputs // LINES, self.splits)](
            x,
            matrix.weight,
            matrix.step,
            matrix.step if matrix.offset is None else matrix.offset,
            matrix.scale,
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
            CHUNK=matrix.chunk,
            HALF=matrix.half,
            GROUP=matrix.group,
            KIND=matrix.kind.value,
            SPLITS=self.splits,
            OFFSET=matrix.offset is not None,
            FACTORED=factor is not None,
            BIASED=bias is not None,
            ADDED=is_added,
            num_warps=4,
            num_stages=4,
            launch_pdl=True,
        )


class CodedDecoded(LibraryLinear):
    """Many rows: weights are decoded for each step."""

    name = "coded_decoded"

    def __init__(self, weights: LinearWeights, matrix: KernelMatrix) -> None:
        super().__init__(weights)
        self._matrix = matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "CodedDecoded | None":
        """All uses."""
        matrix = coded(weights)
        return None if matrix is None else cls(weights, matrix)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        return decoded(self._matrix, self._weights.factor, dtype)


def decoded(matrix: KernelMatrix, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weights as numbers, [..., outputs, inputs], times the factor of their inputs."""
    (outputs, inputs), bytes_ = matrix.shape, matrix.chunk // 2
    *experts, _, width = matrix.weight.shape
    out = torch.empty((*experts, outputs, inputs), dtype=dtype, device=matrix.weight.device)
    _decode[(outputs // (LINES // 2), width // bytes_, prod(experts))](
        matrix.weight,
        matrix.step,
        matrix.step if matrix.offset is None else matrix.offset,
        matrix.scale,
        out if factor is None else factor,
        out,
        outputs,
        inputs,
        HALF=matrix.half,
        GROUP=matrix.group,
        KIND=matrix.kind.value,
        LINES=LINES // 2,
        BYTES=bytes_,
        OFFSET=matrix.offset is not None,
        FACTORED=factor is not None,
        num_warps=4,
    )
    return out


@triton.jit
def add_codes(
    found,
    first,
    second,
    codes,
    step,
    offset,
    stride,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """found [LINES, ROWS] + two halves of weights times their inputs, [HALF, ROWS] each.

    codes          [LINES, HALF]; pointers to those of the first half
    step, offset   [LINES]; pointers to those of its group; those of the next one are `stride` on
    """
    by = tl.load(step).to(tl.float32)[:, None]
    next_by = by if GROUP > HALF else tl.load(step + stride).to(tl.float32)[:, None]
    if KIND == "fp4" and first.dtype == tl.bfloat16:  # a number times its step has at most 6 bits
        low, high = _fp4_pairs(tl.load(codes), _raised(by), _raised(next_by))
        return tl.dot(high, second, tl.dot(low, first, found))
    if KIND == "int8":
        low, high = tl.load(codes).to(first.dtype), tl.load(codes + HALF).to(first.dtype)
    else:
        low, high = halves(tl.load(codes), first.dtype, KIND)
    ones = tl.full([found.shape[0], HALF], 1.0, first.dtype)
    if GROUP > HALF:
        found += tl.dot(high, second, tl.dot(low, first)) * by
        if OFFSET:
            total = tl.dot(ones, second, tl.dot(ones, first))
            found += total * tl.load(offset).to(tl.float32)[:, None]
    else:
        found += tl.dot(low, first) * by
        found += tl.dot(high, second) * next_by
        if OFFSET:
            found += tl.dot(ones, first) * tl.load(offset).to(tl.float32)[:, None]
            found += tl.dot(ones, second) * tl.load(offset + stride).to(tl.float32)[:, None]
    return found


@triton.jit
def _raised(step):
    """The factor that `_fp4_pairs` needs, less the factor of `scale_of`: bfloat16 holds it."""
    return (step * 2.0**118).to(tl.bfloat16)


@triton.jit
def scale_of(scale, KIND: tl.constexpr, dtype: tl.constexpr):
    """By which results of `add_codes` are multiplied."""
    found = tl.load(scale)
    return found * 256.0 if KIND == "fp4" and dtype == tl.bfloat16 else found


@triton.jit
def halves(content, dtype: tl.constexpr, KIND: tl.constexpr):
    """The numbers of both codes of bytes."""
    if dtype == tl.bfloat16:
        if KIND == "int4":
            low, high = _int4_pairs(content)
        else:
            by = tl.full([1, 1], 2.0**126, tl.bfloat16)
            low, high = _fp4_pairs(content, by, by)
    else:
        low, high = _number(content & 15, KIND).to(dtype), _number(content >> 4, KIND).to(dtype)
    return low, high


@triton.jit
def _number(code, KIND: tl.constexpr):
    """The number of a code of 4 bits, in float32."""
    whole = code.to(tl.int32)
    if KIND == "int4":
        found = (whole - 8).to(tl.float32)
    else:
        size = whole & 7  # twice 0, 0.5, 1, 1.5, 2, 3, 4, 6
        twice = tl.where(size < 4, size, tl.where(size < 6, 2 * size - 4, 4 * size - 16))
        found = tl.where(whole < 8, twice, -twice).to(tl.float32) * 0.5
    return found


@triton.jit
def _int4_pairs(content):
    """Both codes of bytes, less 8, in bfloat16. A number whose lowest 4 bits are a code is 128 +
    code."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 first, second, middle;
        mov.b32 middle, 0x43084308;
        prmt.b32 first, $4, 0, 0x4140;
        prmt.b32 second, $4, 0, 0x4342;
        lop3.b32 $0, first, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 $1, second, 0x000f000f, 0x43004300, 0xea;
        shr.u32 first, first, 4;
        shr.u32 second, second, 4;
        lop3.b32 $2, first, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 $3, second, 0x000f000f, 0x43004300, 0xea;
        sub.rn.bf16x2 $0, $0, middle;
        sub.rn.bf16x2 $1, $1, middle;
        sub.rn.bf16x2 $2, $2, middle;
        sub.rn.bf16x2 $3, $3, middle;
        }
        """,
        "=&r,=&r,=&r,=&r,r",
        [content],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def _fp4_pairs(content, by, next_by):
    """Both codes of bytes in bfloat16, times factors of the first ones and the second ones. Sign,
    exponent and mantissa go to their bits there, which is 2^-126 of the number."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 first, second, sign;
        prmt.b32 first, $4, 0, 0x4140;
        prmt.b32 second, $4, 0, 0x4342;
        shl.b32 sign, first, 12;
        shl.b32 $0, first, 6;
        and.b32 $0, $0, 0x01c001c0;
        lop3.b32 $0, sign, 0x80008000, $0, 0xea;
        shl.b32 sign, second, 12;
        shl.b32 $1, second, 6;
        and.b32 $1, $1, 0x01c001c0;
        lop3.b32 $1, sign, 0x80008000, $1, 0xea;
        shl.b32 sign, first, 8;
        shl.b32 $2, first, 2;
        and.b32 $2, $2, 0x01c001c0;
        lop3.b32 $2, sign, 0x80008000, $2, 0xea;
        shl.b32 sign, second, 8;
        shl.b32 $3, second, 2;
        and.b32 $3, $3, 0x01c001c0;
        lop3.b32 $3, sign, 0x80008000, $3, 0xea;
        mul.rn.bf16x2 $0, $0, $5;
        mul.rn.bf16x2 $1, $1, $6;
        mul.rn.bf16x2 $2, $2, $7;
        mul.rn.bf16x2 $3, $3, $8;
        }
        """,
        "=&r,=&r,=&r,=&r,r,r,r,r,r",
        [content, by, next_by],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit(do_not_specialize=["rows"])
def _few(
    x,
    weight,
    step,
    offset,
    scale,
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
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    SPLITS: tl.constexpr,
    OFFSET: tl.constexpr,
    FACTORED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, line = tl.arange(0, ROWS), tl.program_id(0) * LINES + tl.arange(0, LINES)
    share: tl.constexpr = INPUTS // SPLITS
    per_byte: tl.constexpr = 1 if KIND == "int8" else 2
    begin, index = tl.program_id(1) * share, tl.arange(0, HALF)
    there = (row < rows)[:, None]
    values = x + row[:, None] * INPUTS + index[None, :]
    codes = weight + line.to(tl.int64)[:, None] * (INPUTS // per_byte) + index[None, :]
    found = tl.zeros([LINES, ROWS], tl.float32)
    for past in range(0, share, CHUNK):
        for part in tl.static_range(CHUNK // (2 * HALF)):
            at = begin + past + part * 2 * HALF
            first = tl.load(values + at, mask=there, other=0.0)
            second = tl.load(values + at + HALF, mask=there, other=0.0)
            if FACTORED:
                by = tl.load(factor + index + at)
                first = (first.to(tl.float32) * by[None, :]).to(x.dtype.element_ty)
                by = tl.load(factor + index + at + HALF)
                second = (second.to(tl.float32) * by[None, :]).to(x.dtype.element_ty)
            group = at // GROUP * outputs + line
            found = add_codes(
                found,
                tl.trans(first),
                tl.trans(second),
                codes + at // per_byte,
                step + group,
                offset + group,
                outputs,
                HALF,
                GROUP,
                KIND,
                OFFSET,
            )
    total = tl.trans(found * scale_of(scale + line, KIND, x.dtype.element_ty)[:, None])
    add_up(total, out, parts, ended, bias, line, rows, outputs, SPLITS, BIASED, ADDED)


@triton.jit
def _decode(
    weight,
    step,
    offset,
    scale,
    factor,
    out,
    outputs,
    inputs,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    LINES: tl.constexpr,
    BYTES: tl.constexpr,
    OFFSET: tl.constexpr,
    FACTORED: tl.constexpr,
):
    line = (tl.program_id(0) * LINES + tl.arange(0, LINES))[:, None]
    expert = tl.program_id(2).to(tl.int64)
    row = expert * outputs + line
    groups = expert * outputs * (inputs // GROUP)
    per_byte: tl.constexpr = 1 if KIND == "int8" else 2
    spot = (tl.program_id(1) * BYTES + tl.arange(0, BYTES))[None, :]
    content = tl.load(weight + row * (inputs // per_byte) + spot)
    by = tl.load(scale + row)
    for half in tl.static_range(per_byte):
        if KIND == "int8":
            index, found = spot, content.to(tl.float32)
        else:
            index = spot // HALF * 2 * HALF + spot % HALF + half * HALF
            found = _number((content >> 4 * half) & 15, KIND)
        group = groups + index // GROUP * outputs + line
        found *= tl.load(step + group).to(tl.float32)
        if OFFSET:
            found += tl.load(offset + group).to(tl.float32)
        found *= by
        if FACTORED:
            found *= tl.load(factor + index)
        tl.store(out + row * inputs + index, found.to(out.dtype.element_ty))
