"""`quant_method: modelopt`: fp8 by tensors; NVFP4, with scales of 16 inputs and of tensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.fp4 import NVFP4_GROUP, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from paceline.runner.weights.quantized_matrix import checked
from paceline.runner.weights.scaled_format import ScaledFormat, beside
from paceline.runner.weights.weight_format import Quantization, Read, WeightFormat, has_kv_scales

ALGORITHM = "NVFP4"
SCALE = ("F8_E4M3",)
BY_TENSOR = ScaledFormat("modelopt FP8", scales="tensor", input_scale="input_scale")


@dataclass(frozen=True, slots=True)
class Modelopt(WeightFormat):
    """NVFP4: a byte has the codes of two inputs. The lower half is that of the earlier one.

    codes         name of their tensor
    whole         name of the scale of the tensor
    is_divisor    numbers are divided by that scale
    input_scale   there is one scale of the inputs too. It is not used
    """

    name: ClassVar[str] = "modelopt"
    codes: str = "weight"
    whole: str = "weight_scale_2"
    is_divisor: bool = False
    input_scale: str = "input_scale"

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        outputs, inputs = weight.whole_shape
        if weight.cut is not None:
            raise ConfigError(f"{ALGORITHM} checkpoints are not divided among ranks yet")
        if inputs % NVFP4_GROUP:
            raise ConfigError(f"{weight.name} has {inputs} inputs, no multiple of {NVFP4_GROUP}")
        found = [
            beside(weight, self.codes, (outputs, inputs // 2), ("U8",)),
            beside(weight, "weight_scale", (outputs, inputs // NVFP4_GROUP), SCALE),
            beside(weight, self.whole, ()),
        ]
        if self.input_scale:
            found.append(beside(weight, self.input_scale, ()))
        return tuple(found)

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        codes, of_groups, of_tensor, *_ = self.stored(weight)
        scale, whole = read(of_groups), checked(read(of_tensor), of_tensor.name).reshape(())
        checked(scale, of_groups.name)
        factor = 1 / whole if self.is_divisor else whole
        if not bool(torch.isfinite(factor)):
            raise ConfigError(f"tensor {of_tensor.name!r} is {float(whole)}, which is no scale")
        return Nvfp4Matrix(read(codes), scale, factor.expand(len(scale)).contiguous())

    def quantize(self, weight: Tensor) -> Matrix:
        return PlainMatrix(weight) if weight.shape[1] % NVFP4_GROUP else Nvfp4Matrix.of(weight)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Quantization:
        algorithm = config.get("quant_algo")
        if algorithm not in (ALGORITHM, "FP8"):
            raise ConfigError(
                f"modelopt with {algorithm!r} is not supported; FP8 and {ALGORITHM} are"
            )
        format: WeightFormat = BY_TENSOR
        if algorithm == ALGORITHM:
            format = cls()
        names = config.get("ignore") or config.get("exclude_modules") or ()
        rules = tuple((pattern(str(name)), None) for name in names)
        return Quantization(format, rules, has_kv_scales("modelopt", config))


def pattern(name: str) -> str:
    """The pattern of a module and what is in it; `*` stands for anything."""
    return r"(.*\.)?" + re.escape(name).replace(r"\*", ".*") + r"(\..*)?"
