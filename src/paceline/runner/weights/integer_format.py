"""Read weights of 4 or 8 bits that are packed into 32-bit words."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from paceline.runner.weights.quantized_matrix import (
    CodedMatrix,
    GroupedMatrix,
    OrderedMatrix,
    ScaledMatrix,
    checked,
)
from paceline.runner.weights.scaled_format import FLOATS, beside
from paceline.runner.weights.weight_format import Read, WeightFormat

WORD_BITS, FOUR = 32, 4
WORD = ("I32",)


def unpacked(words: Tensor, bits: int, dim: int, order: tuple[int, ...] = ()) -> Tensor:
    """Unpack words along a dimension, low bits first. With `order`, the i-th code is at index
    order[i] of its word."""
    offsets = range(0, WORD_BITS, bits)
    shifts = torch.tensor(
        [offsets[at] for at in order] or list(offsets), dtype=torch.int32, device=words.device
    )
    codes = words.unsqueeze(dim + 1)
    shape = [1] * codes.dim()
    shape[dim + 1] = len(shifts)
    found = codes >> shifts.view(shape) & (1 << bits) - 1
    return found.flatten(dim, dim + 1)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Bits of a code, and inputs that share a scale.

    bits      of a code: 4 or 8
    size      inputs of a group; -1: all
    has_zero  do groups store a zero? If not, it is the middle of the code range
    """

    bits: int
    size: int
    has_zero: bool

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ConfigError(f"weights of {self.bits} bits are not supported; 4 and 8 are")

    @property
    def per_word(self) -> int:
        return WORD_BITS // self.bits

    @property
    def middle(self) -> int:
        return 1 << self.bits - 1

    def groups(self, inputs: int) -> int:
        return 1 if self.size < 0 else -(-inputs // self.size)

    def matrix(self, codes: Tensor, scale: Tensor, zero: Tensor | None) -> Matrix:
        """A matrix of codes [outputs, inputs], scales and zeros [outputs, groups]."""
        zero = torch.full_like(scale, self.middle) if zero is None else zero
        inputs, is_even = codes.shape[1], codes.shape[1] % scale.shape[1] == 0
        if self.bits == FOUR and is_even and inputs % 2 == 0:
            return GroupedMatrix.of_codes(codes, scale, zero)
        if self.bits != FOUR and is_even:
            return self._bytes(codes, scale.contiguous(), zero)
        size = -(-inputs // scale.shape[1])
        spread = [one.float().repeat_interleave(size, 1)[:, :inputs] for one in (scale, zero)]
        return PlainMatrix((codes.float() - spread[1]) * spread[0])

    def _bytes(self, codes: Tensor, scale: Tensor, zero: Tensor) -> Matrix:
        """A matrix of 8 bits."""
        signed, past = (codes - self.middle).to(torch.int8).contiguous(), self.middle - zero
        if bool(past.any()):
            return CodedMatrix(signed, scale, past * scale)
        if scale.shape[1] == 1:
            return ScaledMatrix(signed, scale, (1, codes.shape[1]))
        return CodedMatrix(signed, scale)

    def ordered(self, codes: Tensor, scale: Tensor, zero: Tensor | None, group: Tensor) -> Matrix:
        """The same with act order, where `inputs` [inputs] are the groups of inputs."""
        order = group.argsort(stable=True)
        if torch.equal(order, torch.arange(len(order), device=order.device)):
            return self.matrix(codes, scale, zero)
        sizes = group.bincount(minlength=scale.shape[1])
        if bool((sizes == sizes[0]).all()):
            matrix = self.matrix(codes[:, order], scale, zero)
            if isinstance(matrix, GroupedMatrix | CodedMatrix):
                return OrderedMatrix(matrix, order)
        middle = torch.full_like(scale, self.middle) if zero is None else zero
        return PlainMatrix((codes.float() - middle[:, group].float()) * scale[:, group])


@dataclass(frozen=True, slots=True)
class WordsOfInputs(WeightFormat):
    """GPTQ and AWQ: words [inputs, outputs], each with the codes of several inputs or outputs.

    order      of the codes in a word
    is_along   do inputs share a word? Otherwise, outputs do
    past       amount to add to stored zeros
    has_order  does `g_idx` store the group of each input?
    """

    name: ClassVar[str] = "words of inputs"
    method: str
    grouping: Grouping
    order: tuple[int, ...] = ()
    is_along: bool = True
    past: int = 0
    has_order: bool = False

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        (outputs, inputs), per = weight.whole_shape, self.grouping.per_word
        if weight.cut is not None:
            raise ConfigError(f"{self.method} checkpoints are not divided among ranks yet")
        groups = self.grouping.groups(inputs)
        words = (inputs // per, outputs) if self.is_along else (inputs, outputs // per)
        found = [
            beside(weight, "qweight", words, WORD),
            beside(weight, "qzeros", (groups, outputs // per), WORD),
            beside(weight, "scales", (groups, outputs), FLOATS),
        ]
        if self.has_order:
            found.append(beside(weight, "g_idx", (inputs,), WORD))
        return tuple(found)

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        words, zeros, scales, *order = self.stored(weight)
        bits = self.grouping.bits
        codes = unpacked(read(words), bits, 0 if self.is_along else 1, self.order).t()
        zero = unpacked(read(zeros), bits, 1, self.order).t() + self.past
        scale = checked(read(scales), scales.name).t()
        if order and self.grouping.size > 0:
            return self.grouping.ordered(codes, scale, zero, read(order[0]).long())
        return self.grouping.matrix(codes, scale, zero)


@dataclass(frozen=True, slots=True)
class PackedRows(WeightFormat):
    """`pack-quantized` of compressed-tensors: words [outputs, inputs / 8], zeros packed along
    outputs."""

    name: ClassVar[str] = "packed rows"
    grouping: Grouping
    has_order: bool = False

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        (outputs, inputs), per = weight.whole_shape, self.grouping.per_word
        if weight.cut is not None:
            raise ConfigError("pack-quantized checkpoints are not divided among ranks yet")
        groups = self.grouping.groups(inputs)
        found = [
            beside(weight, "weight_packed", (outputs, -(-inputs // per)), WORD),
            beside(weight, "weight_scale", (outputs, groups), FLOATS),
            beside(weight, "weight_shape", (2,), ("I64", "I32")),
        ]
        if self.grouping.has_zero:
            found.append(beside(weight, "weight_zero_point", (-(-outputs // per), groups), WORD))
        if self.has_order:
            found.append(beside(weight, "weight_g_idx", (inputs,), WORD))
        return tuple(found)

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        by_name = {one.name.rpartition(".")[2]: one for one in self.stored(weight)}
        outputs, inputs = weight.shape
        bits = self.grouping.bits
        codes = unpacked(read(by_name["weight_packed"]), bits, 1)[:, :inputs]
        spec = by_name["weight_scale"]
        scale, zero = checked(read(spec), spec.name), None
        if self.grouping.has_zero:
            zero = unpacked(read(by_name["weight_zero_point"]), bits, 0)[:outputs]
        if self.has_order:
            return self.grouping.ordered(codes, scale, zero, read(by_name["weight_g_idx"]).long())
        return self.grouping.matrix(codes, scale, zero)
