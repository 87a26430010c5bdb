"""Weights in codes, as the kernels for groups of inputs read them."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from paceline.runner.weights.fp4 import BIAS, VALUES, Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import (
    CodedMatrix,
    GroupedMatrix,
    ScaledMatrix,
    unpacked,
)

LINES = 64  # outputs of a program, as many as tensor cores take at a time
CHUNKS = (128, 64)  # inputs that it reads at a time: the first that divides those of the linear
GROUPS = (16, 32, 64, 128, 256)  # inputs
MANTISSA_BITS = 7  # of bfloat16
MIDDLE = 8  # of codes of 4 bits; kernels multiply their distances from it


class CodeKind(StrEnum):
    """What codes are: integers of 8 or 4 bits, or floating-point numbers of 4."""

    INT8 = "int8"
    INT4 = "int4"
    FP4 = "fp4"

    @property
    def per_byte(self) -> int:
        return 1 if self is CodeKind.INT8 else 2


@dataclass(frozen=True, slots=True, eq=False)
class KernelMatrix(Matrix):
    """Weights as kernels read them: (code * step + offset) * scale. The two codes of a byte are
    `half` inputs apart.

    weight   [outputs, inputs] in int8, or [outputs, inputs / 2] in uint8
    step     [groups, outputs] in float16, of 4-bit floating-point numbers in fp8 or bfloat16
    offset   [groups, outputs] in float16; None: 0
    scale    [outputs] in float32
    group    inputs
    """

    weight: Tensor
    step: Tensor
    offset: Tensor | None
    scale: Tensor
    kind: CodeKind
    group: int

    @staticmethod
    def of(matrix: Matrix) -> "KernelMatrix | None":
        """None: kernels cannot read these weights."""
        outputs, inputs = matrix.shape
        if outputs % LINES or inputs % CHUNKS[-1]:
            return None
        match matrix:
            case KernelMatrix():
                return matrix
            case CodedMatrix(weight, step, offset):
                return _integers(weight, step, offset)
            case GroupedMatrix(weight, scale, zero):
                return _integers(unpacked(weight), scale, -zero.float() * scale)
            case ScaledMatrix(weight, scale) if weight.dtype == torch.int8 and matrix.is_by_row:
                return _integers(weight, scale, None)
            case Nvfp4Matrix(weight, scale, whole):
                return _fp4(weight, scale, whole)
            case Mxfp4Matrix(weight, exponent):
                # Exponents as bfloat16 has them, less the largest of an output, which may overflow.
                power, largest = exponent.short(), exponent.amax(dim=-1, keepdim=True).short()
                step = (power - largest + BIAS).clamp_(min=0) << MANTISSA_BITS
                whole = torch.ldexp(torch.ones_like(largest, dtype=torch.float32), largest - BIAS)
                return _fp4(weight, step.view(torch.bfloat16), whole.squeeze(-1))
            case _:
                return None

    @property
    def form(self) -> str:
        offsets = "" if self.offset is None else " with offsets"
        return f"{self.kind} by groups of {self.group}{offsets}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], self.weight.shape[-1] * self.kind.per_byte

    @property
    def chunk(self) -> int:
        """Inputs that a program reads at a time."""
        return chunk_of(self.shape[1])

    @property
    def half(self) -> int:
        return half_of(self.shape[1], self.group)

    def dense(self) -> Tensor:
        codes = self.weight.float()
        if self.kind is not CodeKind.INT8:
            parts = self.weight.view(*self.weight.shape[:-1], -1, self.half)
            whole = torch.stack((parts & 15, parts >> 4), dim=-2).flatten(-3)
            is_int4 = self.kind is CodeKind.INT4
            codes = whole.float() - MIDDLE if is_int4 else VALUES.to(whole.device)[whole.long()]
        groups = codes.view(*codes.shape[:-1], -1, self.group)
        groups = groups * self.step.mT.float().unsqueeze(-1)
        if self.offset is not None:
            groups += self.offset.mT.float().unsqueeze(-1)
        return groups.flatten(-2) * self.scale.unsqueeze(-1)


def _fp4(weight: Tensor, step: Tensor, whole: Tensor) -> KernelMatrix:
    inputs = 2 * weight.shape[-1]
    group = inputs // step.shape[-1]
    halved = _halved(unpacked(weight), half_of(inputs, group))
    return KernelMatrix(halved, step.mT.contiguous(), None, whole, CodeKind.FP4, group)


def _integers(codes: Tensor, step: Tensor, offset: Tensor | None) -> KernelMatrix | None:
    """Integers from -128 to 127, or in uint8 from 0 to 15. Steps and offsets are divided by a power
    of two of each output, so that float16 holds them."""
    inputs = codes.shape[-1]
    group, chunk = inputs // step.shape[-1], chunk_of(inputs)
    if group > GROUPS[-1] and group % chunk == 0:
        times, group = group // chunk, chunk
        step = step.repeat_interleave(times, dim=-1)
        offset = None if offset is None else offset.repeat_interleave(times, dim=-1)
    if group not in GROUPS:
        return None
    is_int4 = codes.dtype == torch.uint8
    if is_int4:
        offset = MIDDLE * step if offset is None else offset + MIDDLE * step
    if offset is not None and not bool(offset.any()):
        offset = None
    largest = step.abs().amax(dim=-1)
    if offset is not None:
        largest = torch.maximum(largest, offset.abs().amax(dim=-1))
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)

    def divided(numbers: Tensor) -> Tensor:
        return (numbers / scale.unsqueeze(-1)).half().mT.contiguous()

    weight = _halved(codes, half_of(inputs, group)) if is_int4 else codes.contiguous()
    offset = None if offset is None else divided(offset)
    kind = CodeKind.INT4 if is_int4 else CodeKind.INT8
    return KernelMatrix(weight, divided(step), offset, scale, kind, group)


def chunk_of(inputs: int) -> int:
    return next(chunk for chunk in CHUNKS if inputs % chunk == 0)


def half_of(inputs: int, group: int) -> int:
    """Inputs between the two codes of a byte."""
    return min(group, chunk_of(inputs) // 2)


def _halved(codes: Tensor, half: int) -> Tensor:
    halves = codes.view(*codes.shape[:-1], -1, 2, half)
    low, high = halves.unbind(dim=-2)
    return (low | high << 4).flatten(-2)
