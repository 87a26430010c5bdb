"""Weights of 4-bit floating-point numbers: MXFP4, with an exponent per 32 inputs, and NVFP4, with a
scale per 16."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from paceline.runner.weights.codes import GroupCodes
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import FP8, FP8_MAX, unpacked

GROUP = 32  # inputs that share an exponent
NVFP4_GROUP = 16  # inputs that share a scale
LEAST_SCALE = 2.0**-9  # that fp8 holds
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor((*SIZES, *(-size for size in SIZES)))
BIAS = 127  # of stored exponents
MOST_EXPONENT = 2  # of a number
# Twice the values are integers; the table has their distances from the least one.
HALF, LEAST = 0.5, -12
TABLE = tuple(int(sign * size / HALF) - LEAST for sign in (1, -1) for size in SIZES)


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Matrix(Matrix):
    """Two codes per byte; the low 4 bits are for the earlier input.

    weight     [outputs, inputs / 2]; uint8
    exponent   [outputs, inputs / 32]; uint8
    """

    weight: Tensor
    exponent: Tensor

    @property
    def form(self) -> str:
        return "mxfp4"

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], 2 * self.weight.shape[-1]

    @staticmethod
    def of(weight: Tensor) -> "Mxfp4Matrix":
        """Round weights [outputs, inputs]. The largest weight of a group may be clipped to the
        largest value."""
        groups = weight.float().view(len(weight), -1, GROUP)
        largest = groups.abs().amax(dim=-1).clamp_(min=2.0**-100)
        exponent = torch.frexp(largest).exponent - 1 - MOST_EXPONENT
        scaled = groups * torch.ldexp(torch.ones_like(largest), -exponent).unsqueeze(-1)
        return Mxfp4Matrix(nearest(scaled), (exponent + BIAS).to(torch.uint8))

    def dense(self) -> Tensor:
        codes = unpacked(self.weight)
        values = VALUES.to(codes.device)[codes.long()].view(*self.exponent.shape, GROUP)
        powers = self.exponent.to(torch.int32).sub_(BIAS).unsqueeze(-1)
        return torch.ldexp(values, powers).flatten(-2)

    def codes(self) -> GroupCodes:
        powers = self.exponent.to(torch.int32).sub_(BIAS)
        step = torch.ldexp(torch.full_like(powers, HALF, dtype=torch.float32), powers)
        return GroupCodes(unpacked(self.weight), step, LEAST * step, TABLE)

    def select(self, outputs: Tensor) -> "Mxfp4Matrix":
        return Mxfp4Matrix(self.weight[outputs], self.exponent[outputs])


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Matrix(Matrix):
    """Two codes per byte; the low 4 bits are for the earlier input.

    weight   [outputs, inputs / 2]; uint8
    scale    [outputs, inputs / 16]; fp8
    whole    [outputs] in float32; the scale of the tensor that an output is from
    """

    weight: Tensor
    scale: Tensor
    whole: Tensor

    @property
    def form(self) -> str:
        return "nvfp4"

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], 2 * self.weight.shape[-1]

    @staticmethod
    def of(weight: Tensor) -> "Nvfp4Matrix":
        """Round weights [outputs, inputs]."""
        groups = weight.float().view(len(weight), -1, NVFP4_GROUP)
        largest = groups.abs().amax(dim=-1)
        whole = largest.max().clamp(min=1e-30) / (SIZES[-1] * FP8_MAX)
        scale = (largest / (SIZES[-1] * whole)).clamp_(min=LEAST_SCALE).to(FP8)
        codes = nearest(groups / (scale.float() * whole).unsqueeze(-1))
        return Nvfp4Matrix(codes, scale, whole.expand(len(weight)).contiguous())

    def dense(self) -> Tensor:
        codes = unpacked(self.weight)
        values = VALUES.to(codes.device)[codes.long()].view(*self.scale.shape, NVFP4_GROUP)
        scale = self.scale.float() * self.whole.unsqueeze(-1)
        return values.mul_(scale.unsqueeze(-1)).flatten(-2)

    def scaled(self, factor: float) -> "Nvfp4Matrix":
        return replace(self, whole=self.whole * factor)

    def select(self, outputs: Tensor) -> "Nvfp4Matrix":
        # torch cannot index fp8
        scale = self.scale.view(torch.uint8)[outputs].view(self.scale.dtype)
        return Nvfp4Matrix(self.weight[outputs], scale, self.whole[outputs])


def nearest(numbers: Tensor) -> Tensor:
    """The codes of numbers [outputs, groups, inputs], two per byte."""
    code, size = (numbers < 0).view(torch.uint8) * 8, numbers.abs()
    for low, high in pairwise(SIZES):
        code += (size > (low + high) / 2).view(torch.uint8)
    code = code.flatten(1)
    return code[:, ::2] | code[:, 1::2] << 4
