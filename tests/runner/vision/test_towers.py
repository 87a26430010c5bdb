"""Vision towers compute what those of transformers do."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings

from paceline.core.errors import ConfigError
from paceline.runner.vision.towers import (
    ImageSquares,
    VisionTower,
    Windows,
    fractions,
    load,
)
from tests.golden.image_models import close, image_model
from tests.golden.image_sizes import random_image


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
        ("clip", "no vision tower 'clip': there are patches, and dotted paths"),
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


@pytest.mark.parametrize(("height", "width"), [(16, 16), (40, 24), (32, 56), (8, 64)])
def test_embeddings_of_qwen_are_those_of_transformers(height: int, width: int) -> None:
    """Windows of 2 by 2 squares: whole ones, and rests at the right, below and in the corner."""
    model, image = image_model("Qwen2_5_VL"), random_image(height, width)
    given = model.processor([image], return_tensors="pt")
    theirs = model.theirs.get_image_features(**given).pooler_output[0]
    images = model.ours().images
    assert images is not None
    (ours,) = images.tower([torch.from_numpy(image)])
    close(ours, theirs)


def test_windows_of_one_size_are_adjacent() -> None:
    windows = Windows.of(3, 5, 2)
    assert windows.groups == [(2, 4), (3, 2), (1, 1)]
    assert sorted(windows.order.tolist()) == list(range(15))
    assert windows.order[:4].tolist() == [0, 1, 5, 6]


def test_patches_of_a_square_are_adjacent() -> None:
    positions = ImageSquares(1, 2, 2).positions()
    assert positions[0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert positions[1].tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM"])
def test_embeddings_of_siglip_are_those_of_transformers(name: str) -> None:
    model = image_model(name)
    tiles = [torch.from_numpy(random_image(30, 30, seed)) for seed in range(3)]
    scaled = torch.stack(tiles).permute(0, 3, 1, 2).float() / 255
    theirs = model.theirs.get_image_features((scaled[None] - 0.5) / 0.5).pooler_output[0]
    images = model.ours().images
    assert images is not None
    close(torch.cat(images.tower(tiles)), theirs)


@pytest.mark.parametrize("side", [4, 25, 27, 32])
def test_positions_are_rounded_as_in_training(side: int) -> None:
    """Where fractions are not exact, the processor decides to which side they are rounded."""
    config = Idefics3VisionConfig(hidden_size=1, image_size=side, patch_size=1)
    theirs = Idefics3VisionEmbeddings(config)
    torch.nn.init.zeros_(theirs.patch_embedding.bias)
    theirs.position_embedding.weight = torch.nn.Parameter(torch.arange(side * side)[:, None] * 1.0)
    found = theirs(torch.zeros(1, 3, side, side), torch.ones(1, side, side, dtype=torch.bool))
    row = fractions(side)
    assert (row[:, None] * side + row).flatten().tolist() == found.flatten().tolist()


def test_some_patches_have_the_position_of_a_neighbour() -> None:
    assert len(set(fractions(32).tolist())) == 32
    assert len(set(fractions(25).tolist())) < 25
