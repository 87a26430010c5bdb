from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import Shape, manifest
from paceline.runner.weights.checkpoint import verify
from tests.runner.support import tiny


class Listed:
    """A checkpoint of which only the names and shapes matter."""

    files: Sequence[Path] = ()
    is_quantized = False

    def __init__(self, config: ModelConfig, shapes: Mapping[str, Shape]) -> None:
        self.config, self.shapes = config, shapes

    def read(self, name: str) -> Tensor:
        raise AssertionError(f"{name} is read before everything is verified")


def test_the_right_tensors_pass() -> None:
    verify(Listed(tiny(), manifest(tiny())))


def test_every_wrong_tensor_is_named() -> None:
    shapes = manifest(tiny())
    del shapes["model.norm.weight"]
    shapes["model.layers.2.input_layernorm.weight"] = (24,)
    shapes["model.layers.0.mlp.up_proj.weight"] = (24, 40)
    with pytest.raises(ConfigError) as error:
        verify(Listed(tiny(), shapes))
    assert "missing: model.norm.weight;" in str(error.value)
    assert "unknown: model.layers.2.input_layernorm.weight;" in str(error.value)
    assert "mlp.up_proj.weight [24, 40] instead of [40, 24]" in str(error.value)


def test_a_long_list_is_cut() -> None:
    with pytest.raises(ConfigError, match="and 16 more"):
        verify(Listed(tiny(), {}))
