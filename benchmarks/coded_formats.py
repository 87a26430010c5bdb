"""Formats that only files have, made of plain weights: for benchmarks and tests.

python -m benchmarks.gpu_linears qwen3-14b:benchmarks.coded_formats.Q4K 1 64
"""

from typing import ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.quantized_matrix import FP8, FP8_MAX, CodedMatrix, ScaledMatrix
from paceline.runner.weights.weight_format import Read, WeightFormat

BLOCK = 128  # inputs and outputs


def codes_in_groups(weight: Tensor, bits: int, group: int, has_offset: bool) -> CodedMatrix:
    """Weights [outputs, inputs] as integers in groups of inputs."""
    groups, most = weight.view(len(weight), -1, group), (1 << bits) - 1
    middle = 1 << bits - 1
    if has_offset:
        low, high = groups.aminmax(dim=-1)
        step = (high - low) / most
        offset = low + middle * step
    else:
        step = groups.abs().amax(dim=-1) / (middle - 1)
        offset = step.new_zeros(step.shape)
    wide = step.clamp(min=1e-30).unsqueeze(-1)
    signed = ((groups - offset.unsqueeze(-1)) / wide).round().clamp(-middle, middle - 1).flatten(1)
    if bits == 4:
        return CodedMatrix((signed + middle).byte(), step, offset - middle * step)
    return CodedMatrix(signed.char(), step, offset if has_offset else None)


class Coded(WeightFormat):
    """Integers in groups. A subclass says how many bits and inputs, and whether groups have
    offsets."""

    bits: ClassVar[int]
    group: ClassVar[int]
    has_offset: ClassVar[bool] = False

    def read(self, weight: TensorSpec, read: Read) -> CodedMatrix:
        raise ConfigError(f"{self.name} is for plain checkpoints")

    def quantize(self, weight: Tensor) -> CodedMatrix:
        return codes_in_groups(weight, self.bits, self.group, self.has_offset)


class Fp8Blocks(WeightFormat):
    """Fp8 with a scale for each block of 128 x 128, as DeepSeek's and Qwen's files have it."""

    name = "fp8_blocks"

    def read(self, weight: TensorSpec, read: Read) -> ScaledMatrix:
        raise ConfigError(f"{self.name} is for plain checkpoints")

    def quantize(self, weight: Tensor) -> ScaledMatrix:
        outputs, inputs = weight.shape
        blocks = weight.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).float()
        scale = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(min=1e-12) / FP8_MAX
        codes = (blocks / scale).view(outputs, inputs).to(FP8)
        return ScaledMatrix(codes, scale[:, 0, :, 0], (BLOCK, BLOCK))


class Q40(Coded):
    name, bits, group = "Q4_0", 4, 32


class Q4K(Coded):
    name, bits, group, has_offset = "Q4_K", 4, 32, True


class Q5K(Coded):
    name, bits, group, has_offset = "Q5_K", 8, 32, True


class Q6K(Coded):
    name, bits, group = "Q6_K", 8, 16


class Q80(Coded):
    name, bits, group = "Q8_0", 8, 32
