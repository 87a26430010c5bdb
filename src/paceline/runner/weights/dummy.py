"""Random weights of any size, for tests and for measuring without a download."""

import json
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.manifest import Shape, manifest


def named_shapes() -> list[str]:
    """Names of the model shapes that come with the package."""
    folder = files("paceline.runner.models") / "shapes"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir())


def config_in(name: str) -> ModelConfig:
    """Of a shape by its name, or of a folder that has a config.json."""
    folder = Path(name).expanduser()
    if name in named_shapes():
        text = (files("paceline.runner.models") / "shapes" / f"{name}.json").read_text()
    elif (folder / "config.json").is_file():
        text = (folder / "config.json").read_text()
    else:
        known = ", ".join(named_shapes())
        raise ConfigError(f"no shape {name!r}: there are {known}, and folders with a config.json")
    return ModelConfig.of_hf(json.loads(text))


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
