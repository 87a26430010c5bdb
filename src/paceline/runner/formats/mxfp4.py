"""`quant_method: mxfp4`: experts of 4 bits, as gpt-oss has them, or made of plain checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import Cut, Run, Shape, TensorSpec
from paceline.runner.weights.checkpoint import part_of
from paceline.runner.weights.fp4 import GROUP, Mxfp4Matrix
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from paceline.runner.weights.weight_format import (
    EXPERTS,
    Quantization,
    Read,
    WeightFormat,
    plain_rules,
)

PER_BYTE = 2
TYPES = ("U8",)
NOT_FINITE = 255  # an exponent


@dataclass(frozen=True, slots=True)
class Mxfp4(WeightFormat):
    """Linears that are not of experts stay plain. A checkpoint has two tensors for a linear of all
    experts:

        …_blocks   [experts, outputs, inputs / 32, 16]; bytes of two numbers
        …_scales   [experts, outputs, inputs / 32]; exponents
    """

    name: ClassVar[str] = "mxfp4"
    of_experts: ClassVar[bool] = True

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        outputs, inputs = weight.whole_shape
        if inputs % GROUP:
            raise ConfigError(f"{weight.name} has {inputs} inputs, no multiple of {GROUP}")
        groups = outputs, inputs // GROUP
        whole = (
            packed(weight, "_blocks", (*groups, GROUP // PER_BYTE)),
            packed(weight, "_scales", groups),
        )
        cut = weight.cut
        if cut is None or (runs := runs_of_groups(cut)) is None:
            return whole
        return tuple(one.part(cut.dim, *runs) for one in whole)

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        blocks, exponents = (read(one) for one in self.stored(weight))
        if bool((exponents == NOT_FINITE).any()):
            raise ConfigError(f"{weight.name} has scales that are not finite")
        matrix = Mxfp4Matrix(blocks.flatten(1), exponents)
        if weight.cut is not None and runs_of_groups(weight.cut) is None:
            return PlainMatrix(part_of(matrix.dense(), weight.cut))
        return matrix

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Quantization:
        rules = plain_rules(config.get("modules_to_not_convert"))
        return Quantization(None, (*rules, (EXPERTS, cls())))

    def quantize(self, weight: Tensor) -> Matrix:
        return PlainMatrix(weight) if weight.shape[1] % GROUP else Mxfp4Matrix.of(weight)


def packed(weight: TensorSpec, ending: str, shape: Shape) -> TensorSpec:
    """One of the two tensors. Unlike plain ones, they have outputs before inputs."""
    if weight.stack is None:
        raise ConfigError("mxfp4 checkpoints are read if one tensor has all experts of a layer")
    stack = replace(weight.stack, name=weight.stack.name + ending, outputs=1)
    return TensorSpec(weight.name + ending, shape, weight.gguf, stack=stack, types=TYPES)


def runs_of_groups(cut: Cut) -> list[Run] | None:
    """The runs of a part in whole groups of inputs; None if a group would be divided."""
    if cut.dim == 0:
        return list(cut.runs)
    if any(edge % GROUP for run in cut.runs for edge in run):
        return None
    return [(first // GROUP, end // GROUP) for first, end in cut.runs]
