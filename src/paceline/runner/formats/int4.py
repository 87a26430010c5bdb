"""4 bits with a scale and a zero for each group of inputs, made of plain checkpoints."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import groups_of_int4, rows_of_int8
from paceline.runner.weights.weight_format import Read, WeightFormat

GROUPS = (128, 64, 32)  # inputs of a group; the first that divides the inputs


@dataclass(frozen=True, slots=True)
class Int4(WeightFormat):
    """No method of published checkpoints has this name."""

    name: ClassVar[str] = "int4"

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        raise ConfigError("int4 is for plain checkpoints")

    def quantize(self, weight: Tensor) -> Matrix:
        group = next((size for size in GROUPS if weight.shape[1] % size == 0), None)
        return rows_of_int8(weight) if group is None else groups_of_int4(weight, group)
