"""Vision towers by the name in their description."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.vision.towers import VisionTower, load


class NoPixels(VisionTower):
    def __init__(self, factory: Any, spec: Any) -> None:
        self.built_from = factory, spec

    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        return list(images)


def spec_with(feature: str) -> Any:
    return SimpleNamespace(FEATURE=feature)


def test_a_dotted_path_loads_a_tower_of_ones_own() -> None:
    factory: Any = object()
    spec = spec_with(f"{__name__}.NoPixels")
    found = load(factory, spec)
    assert isinstance(found, NoPixels)
    assert found.built_from == (factory, spec)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("clip", "no vision tower 'clip': there are siglip, qwen, and dotted paths"),
        ("no.such.Tower", "no vision tower 'no.such.Tower': No module named 'no'"),
        (
            "fractions.Fraction",
            "'fractions.Fraction' is not a subclass of VisionTower",
        ),
    ],
)
def test_a_name_that_leads_to_no_tower_is_refused(feature: str, message: str) -> None:
    factory: Any = object()
    with pytest.raises(ConfigError, match=message):
        load(factory, spec_with(feature))
