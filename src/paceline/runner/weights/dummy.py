"""Random weights of any size, for tests and for measuring without a download."""

import torch
from torch import Tensor

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.manifest import Shape, manifest


class Dummy:
    """A checkpoint drawn from a seed: a tensor depends on its name and on nothing read before."""

    def __init__(
        self, config: ModelConfig, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.shapes: dict[str, Shape] = manifest(config)
        self._place = {name: place for place, name in enumerate(self.shapes)}
        self._seed, self._device = seed, device

    def read(self, name: str) -> Tensor:
        """Norms near one and products that keep the size of what they are given."""
        shape = self.shapes[name]
        generator = torch.Generator(self._device)
        generator.manual_seed(self._seed * len(self._place) + self._place[name])
        drawn = torch.randn(shape, generator=generator, device=self._device)
        if name.endswith("norm.weight"):
            return drawn.mul_(0.1).add_(1.0 - self.config.traits.norm_offset)
        return drawn.mul_(shape[-1] ** -0.5)
