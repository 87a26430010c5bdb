"""Quantized weights in memory: 8-bit or 4-bit codes with scales of rows, blocks or groups."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.weights.codes import GroupCodes, RowCodes
from paceline.runner.weights.matrix import Matrix, PlainMatrix

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
INT8_MAX = 127
INT4_BITS, INT8_BITS = 4, 8


@dataclass(frozen=True, slots=True, eq=False)
class ScaledMatrix(Matrix):
    """8-bit codes, with a scale per block of outputs and inputs.

    weight       [outputs, inputs]; fp8 or int8
    scale        [outputs / block outputs, inputs / block inputs] in float32, rounded up for
                 partial blocks
    block        outputs and inputs of a block; 1 and all inputs: a scale per output
    input_bits   of the inputs that int8 weights were made for: 16 or 8
    """

    weight: Tensor
    scale: Tensor
    block: tuple[int, int]
    input_bits: int = 16

    @property
    def form(self) -> str:
        kind = "fp8" if self.weight.dtype == FP8 else "int8"
        inputs = " for inputs in int8" if self.takes_int8 else ""
        return f"{kind} by {'rows' if self.is_by_row else 'blocks'}{inputs}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], self.weight.shape[-1]

    @property
    def is_by_row(self) -> bool:
        return self.block[0] == 1 and self.scale.shape[-1] == 1

    @property
    def takes_int8(self) -> bool:
        """Were int8 weights made for inputs in int8?"""
        return self.weight.dtype == torch.int8 and self.input_bits == INT8_BITS

    def dense(self) -> Tensor:
        (outputs, inputs), (rows, columns) = self.shape, self.block
        scale = self.scale.repeat_interleave(rows, -2)[..., :outputs, :]
        return self.weight.float() * scale.repeat_interleave(columns, -1)[..., :inputs]

    def scaled(self, factor: float) -> "ScaledMatrix":
        return replace(self, scale=self.scale * factor)

    def select(self, outputs: Tensor) -> "ScaledMatrix | PlainMatrix":
        if not self.is_by_row:
            return PlainMatrix(self.dense()[outputs])
        # torch cannot index fp8
        weight = self.weight.view(torch.uint8)[outputs].view(self.weight.dtype)
        return replace(self, weight=weight, scale=self.scale[outputs])

    @property
    def joins(self) -> bool:
        return self.shape[0] % self.block[0] == 0

    def codes(self) -> RowCodes | None:
        is_int8 = self.weight.dtype == torch.int8 and self.is_by_row
        return RowCodes(self.weight, self.scale.flatten()) if is_int8 else None


@dataclass(frozen=True, slots=True, eq=False)
class GroupedMatrix(Matrix):
    """4-bit codes, two per byte; the low 4 bits are for the earlier input. Inputs of a group share
    a scale and a zero: (code - zero) * scale.

    weight   [outputs, inputs / 2]; uint8
    scale    [outputs, groups] in float32
    zero     [outputs, groups]; uint8
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor

    @property
    def form(self) -> str:
        return f"int4 by groups of {self.shape[1] // self.scale.shape[-1]}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], 2 * self.weight.shape[-1]

    @staticmethod
    def of_codes(codes: Tensor, scale: Tensor, zero: Tensor) -> "GroupedMatrix":
        """Pack `codes` [outputs, inputs], from 0 to 15."""
        codes = codes.to(torch.uint8)
        packed = codes[..., ::2] | codes[..., 1::2] << 4
        return GroupedMatrix(packed, scale.float(), zero.to(torch.uint8))

    def codes(self) -> GroupCodes:
        return GroupCodes(unpacked(self.weight), self.scale, -self.zero.float() * self.scale)

    def dense(self) -> Tensor:
        codes = unpacked(self.weight)
        groups = codes.view(*codes.shape[:-1], self.scale.shape[-1], -1)
        found = (groups.float() - self.zero.float().unsqueeze(-1)) * self.scale.unsqueeze(-1)
        return found.flatten(-2)

    def scaled(self, factor: float) -> "GroupedMatrix":
        return replace(self, scale=self.scale * factor)

    def select(self, outputs: Tensor) -> "GroupedMatrix":
        return GroupedMatrix(self.weight[outputs], self.scale[outputs], self.zero[outputs])


@dataclass(frozen=True, slots=True, eq=False)
class CodedMatrix(Matrix):
    """Codes of 4 or 8 bits, not packed. Inputs of a group share a step and an offset:
    code * step + offset.

    weight   [outputs, inputs]; uint8 from 0 to 15, or int8
    step     [outputs, groups] in float32
    offset   [outputs, groups] in float32; None: 0
    """

    weight: Tensor
    step: Tensor
    offset: Tensor | None = None

    @property
    def form(self) -> str:
        offsets = "" if self.offset is None else " with offsets"
        return f"int{self.bits} by groups of {self.shape[1] // self.step.shape[-1]}{offsets}"

    @property
    def bits(self) -> int:
        return INT4_BITS if self.weight.dtype == torch.uint8 else INT8_BITS

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], self.weight.shape[-1]

    def dense(self) -> Tensor:
        groups = self.weight.float().view(*self.step.shape, -1).mul_(self.step.unsqueeze(-1))
        if self.offset is not None:
            groups.add_(self.offset.unsqueeze(-1))
        return groups.flatten(-2)

    def scaled(self, factor: float) -> "CodedMatrix":
        offset = None if self.offset is None else self.offset * factor
        return replace(self, step=self.step * factor, offset=offset)

    def select(self, outputs: Tensor) -> "CodedMatrix":
        return self.with_tensors(one[outputs] for one in self.tensors)

    def as_like(self, other: Matrix) -> Matrix:
        """With the groups, the bits and the offsets of the other matrix too."""
        if not isinstance(other, CodedMatrix) or other.shape[1] != self.shape[1]:
            return self
        groups, others = self.step.shape[1], other.step.shape[1]
        if others > groups and others % groups:
            return self
        times = max(others // groups, 1)
        step = self.step.repeat_interleave(times, dim=1)
        offset = None if self.offset is None else self.offset.repeat_interleave(times, dim=1)
        if offset is None and other.offset is not None:
            offset = torch.zeros_like(step)
        weight = self.weight.to(torch.int8) if other.bits > self.bits else self.weight
        return CodedMatrix(weight, step, offset)

    def codes(self) -> GroupCodes | None:
        """Those of 4 bits: integer kernels have no groups of 8 bits."""
        if self.bits != INT4_BITS:
            return None
        offset = torch.zeros_like(self.step) if self.offset is None else self.offset
        return GroupCodes(self.weight, self.step, offset)


@dataclass(frozen=True, slots=True, eq=False)
class OrderedMatrix(Matrix):
    """Weights with reordered inputs, so that those of a group are adjacent.

    order   [inputs]; the input of each column of `matrix`
    """

    matrix: Matrix
    order: Tensor

    @property
    def form(self) -> str:
        return f"{self.matrix.form} in an order of inputs"

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def dense(self) -> Tensor:
        return self.matrix.dense()[:, self.order.argsort()]

    def codes(self) -> GroupCodes | None:
        codes = self.matrix.codes()
        return replace(codes, order=self.order) if isinstance(codes, GroupCodes) else None

    def scaled(self, factor: float) -> "OrderedMatrix":
        return replace(self, matrix=self.matrix.scaled(factor))

    def select(self, outputs: Tensor) -> "OrderedMatrix":
        return OrderedMatrix(self.matrix.select(outputs), self.order)

    def is_like(self, other: Matrix) -> bool:
        return (
            isinstance(other, OrderedMatrix)
            and self.matrix.is_like(other.matrix)
            and torch.equal(self.order, other.order)
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors

    def with_tensors(self, tensors: Iterable[Tensor]) -> "OrderedMatrix":
        return OrderedMatrix(self.matrix.with_tensors(tensors), self.order)


def unpacked(packed: Tensor) -> Tensor:
    """Unpack 4-bit codes, two per byte; the low 4 bits are for the earlier input."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def rows_of_fp8(weight: Tensor) -> ScaledMatrix:
    """Quantize weights [outputs, inputs] to fp8, with a scale per output."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12).div_(FP8_MAX)
    codes = (weight / scale).clamp_(-FP8_MAX, FP8_MAX).to(FP8)
    return ScaledMatrix(codes, scale.float(), (1, weight.shape[1]))


def rows_of_int8(weight: Tensor) -> ScaledMatrix:
    """Quantize weights [outputs, inputs] to int8, with a scale per output."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12).div_(INT8_MAX)
    codes = (weight / scale).round_().to(torch.int8)
    return ScaledMatrix(codes, scale.float(), (1, weight.shape[1]))


def groups_of_int4(weight: Tensor, group: int) -> GroupedMatrix:
    """Quantize weights [outputs, inputs] to int4, with a scale and a zero per group of inputs."""
    groups = weight.view(len(weight), -1, group)
    low, high = groups.amin(dim=-1).clamp_(max=0.0), groups.amax(dim=-1).clamp_(min=0.0)
    scale = (high - low).clamp_(min=1e-12).div_(15)
    zero = (-low / scale).round_()
    codes = (groups / scale.unsqueeze(-1)).round_().add_(zero.unsqueeze(-1)).clamp_(0, 15)
    return GroupedMatrix.of_codes(codes.flatten(1), scale, zero)


def checked(scale: Tensor, name: str) -> Tensor:
    """Convert scales to float32. ConfigError if one is not finite."""
    scale = scale.float()
    if not bool(torch.isfinite(scale).all()):
        raise ConfigError(f"tensor {name!r} has scales that are not finite")
    return scale
