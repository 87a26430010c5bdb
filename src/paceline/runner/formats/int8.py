"""Integers of 8 bits with a scale for each output, made of plain checkpoints while they load."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import rows_of_int8
from paceline.runner.weights.weight_format import Read, WeightFormat


@dataclass(frozen=True, slots=True)
class Int8(WeightFormat):
    """No method of published checkpoints has this name."""

    name: ClassVar[str] = "int8"

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        raise ConfigError("int8 is for plain checkpoints")

    def quantize(self, weight: Tensor) -> Matrix:
        return rows_of_int8(weight)
