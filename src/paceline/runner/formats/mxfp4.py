"""MXFP4 of experts, made of plain checkpoints while they load."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from paceline.runner.weights.mxfp4 import GROUP, Mxfp4Matrix
from paceline.runner.weights.weight_format import Read, WeightFormat


@dataclass(frozen=True, slots=True)
class Mxfp4(WeightFormat):
    """Linears that are not of experts stay plain."""

    name: ClassVar[str] = "mxfp4"
    on_load: ClassVar[str] = r".*\.experts\..*"

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        raise ConfigError("mxfp4 is for plain checkpoints")

    def quantize(self, weight: Tensor) -> Matrix:
        return PlainMatrix(weight) if weight.shape[1] % GROUP else Mxfp4Matrix.of(weight)
