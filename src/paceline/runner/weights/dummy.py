"""Random weights, for tests and benchmarks without a download."""

from collections.abc import Sequence
from copy import copy
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.runner.models.architecture import parts_of
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.linear_spec import NormSpec
from paceline.runner.models.tensor_spec import Shape, TensorSpec
from paceline.runner.weights.weight_format import UNQUANTIZED

# Numbers drawn for a tensor; a larger one repeats them. A prime, so that no two rows are alike.
MOST_DRAWN = 4_194_301


class Dummy:
    """A checkpoint of random tensors, each a function of its name and the seed."""

    files: tuple[Path, ...] = ()

    def __init__(
        self, config: ModelConfig, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.is_quantized = config.quantization != UNQUANTIZED
        spec = describe(config)
        self.shapes: dict[str, Shape] = {tensor.name: tensor.shape for tensor in spec.tensors}
        self._offset = offsets_of(spec)
        self._index = {name: index for index, name in enumerate(self.shapes)}
        self._count, self._seed, self._device = len(self._index), seed, device

    def beside(self, part: Any, tensors: Sequence[TensorSpec]) -> "Dummy":
        """Tensors for a part that is not in the model. Those of the model stay the same."""
        found = copy(self)
        found.shapes = {tensor.name: tensor.shape for tensor in tensors}
        further = [name for name in found.shapes if name not in self._index]
        found._index = self._index | {name: -1 - at for at, name in enumerate(further)}
        found._offset = self._offset | offsets_of(part)
        return found

    def read(self, name: str) -> Tensor:
        """Random values; norm weights are near 1, and linears keep the scale of their inputs."""
        shape = self.shapes[name]
        generator = torch.Generator(self._device)
        generator.manual_seed(self._seed * self._count + self._index[name])
        count = prod(shape)
        drawn = torch.randn(min(count, MOST_DRAWN), generator=generator, device=self._device)
        if count > MOST_DRAWN:
            drawn = drawn.repeat(-(-count // MOST_DRAWN))[:count]
        drawn = drawn.view(shape)
        if not shape:
            return drawn.exp_()  # scales are positive
        if name in self._offset:
            return drawn.mul_(0.1).add_(1.0 - self._offset[name])
        return drawn.mul_(shape[-1] ** -0.5)


def offsets_of(part: Any) -> dict[str, float]:
    """The offsets of norms with weights in a description, by the names of these."""
    return {
        norm.weight.name: norm.offset
        for norm in parts_of(part, NormSpec)
        if not isinstance(norm.weight, int)
    }
