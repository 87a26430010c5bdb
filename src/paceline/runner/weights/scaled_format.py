"""Read 8-bit weights with scales of tensors, outputs or blocks."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import Cut, Shape, TensorSpec
from paceline.runner.weights.quantized_matrix import ScaledMatrix, checked
from paceline.runner.weights.weight_format import Read, WeightFormat

FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class ScaledFormat(WeightFormat):
    """Codes in `weight`, and scales in another tensor of the module.

    method        name for messages
    types         of codes, as safetensors names them
    scale_name    of the tensor with scales
    scales        per tensor, per output ("channel") or per block
    block         outputs and inputs of a block
    input_scale   is an input scale stored? It is ignored: inputs are scaled per row
    input_bits    of the inputs that the weights were made for
    """

    name: ClassVar[str] = "scaled"
    method: str
    types: tuple[str, ...] = ("F8_E4M3",)
    scale_name: str = "weight_scale"
    scales: str = "channel"
    block: tuple[int, int] = (1, 1)
    input_scale: str = ""
    input_bits: int = 16

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        found = [replace(weight, types=self.types), self._scale(weight)]
        if self.input_scale:
            found.append(beside(weight, self.input_scale, ()))
        return tuple(found)

    def read(self, weight: TensorSpec, read: Read) -> ScaledMatrix:
        spec = self._scale(weight)
        scale, codes = checked(read(spec), spec.name), read(weight)
        if self.scales == "tensor":
            scale = scale.reshape(1, 1).expand(len(codes), 1).contiguous()
        block = self.block if self.scales == "block" else (1, codes.shape[1])
        return ScaledMatrix(codes, scale.reshape(self._rows(codes), -1), block, self.input_bits)

    def _rows(self, codes: Tensor) -> int:
        return -(-len(codes) // self.block[0]) if self.scales == "block" else len(codes)

    def _scale(self, weight: TensorSpec) -> TensorSpec:
        outputs, inputs = weight.whole_shape
        if self.scales == "tensor":
            return beside(weight, self.scale_name, ())
        if self.scales == "channel":
            whole = beside(weight, self.scale_name, (outputs, 1))
            is_cut = weight.cut is not None and weight.cut.dim == 0
            return whole.part(0, *weight.cut.runs) if weight.cut and is_cut else whole
        rows, columns = self.block
        shape = -(-outputs // rows), -(-inputs // columns)
        whole = beside(weight, self.scale_name, shape)
        if weight.cut is None:
            return whole
        return whole.part(weight.cut.dim, *blocks_of(weight.cut, self.block, weight.name))


def blocks_of(cut: Cut, block: tuple[int, int], name: str) -> list[tuple[int, int]]:
    """The ranges of a part in blocks."""
    size = block[cut.dim]
    if any(edge % size and edge != cut.whole for run in cut.runs for edge in run):
        raise ConfigError(
            f"{name} cannot be divided among ranks: its scales are those of {size} rows or columns"
        )
    return [(first // size, -(-end // size)) for first, end in cut.runs]


def beside(
    weight: TensorSpec, name: str, shape: Shape, types: tuple[str, ...] = FLOATS
) -> TensorSpec:
    """Another tensor of the same module."""
    stem = weight.name.removesuffix("weight")
    aliases = tuple(alias.removesuffix("weight") + name for alias in weight.aliases)
    return TensorSpec(stem + name, shape, weight.gguf, aliases=aliases, types=types)


def block_in(given: Any) -> tuple[int, int]:
    """Outputs and inputs of a block, from a config."""
    match given:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            raise ConfigError(f"weights in blocks of {given!r} are not supported")
