"""Encoders of images, as the store of embeddings sees them."""

from collections.abc import Sequence

import pytest
from torch import Tensor

from paceline.runner.vision.spec import Tile
from tests.golden.image_models import FAMILIES, image_model


@pytest.mark.parametrize(
    ("name", "square", "has_axes", "tile"),
    [("SmolVLM", 14, False, Tile(28, 4)), ("Qwen2_5_VL", 8, True, None)],
)
def test_sizes_of_images(name: str, square: int, has_axes: bool, tile: Tile | None) -> None:
    found = image_model(name).ours().images
    assert found is not None
    assert (found.width, found.square, found.tile) == (32, square, tile)
    assert found.has_axes == has_axes


@pytest.mark.parametrize("name", FAMILIES)
def test_the_smallest_image_has_as_many_embeddings_as_positions(name: str) -> None:
    found = image_model(name).ours().images
    assert found is not None
    image = found.smallest()
    assert image.content is not None
    (embeddings,) = found.encode([image.content])
    assert embeddings.shape == (image.length, found.width)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SmolVLM", [[(28, 28)], [(28, 28)] * 2]),
        ("Qwen2_5_VL", [[(8, 16)], [(24, 24)]]),  # one image of squares of eight pixels
    ],
)
def test_a_rehearsal_encodes_as_much_as_a_step_may(name: str, expected: object) -> None:
    found = image_model(name).ours().images
    assert found is not None
    seen: list[list[tuple[int, ...]]] = []

    def encoded(images: Sequence[Tensor]) -> list[Tensor]:
        seen.append([tuple(image.shape[:2]) for image in images])
        return []

    tower, found.tower = found.tower, encoded
    try:
        for embeddings in (2, 9):
            found.rehearse(embeddings)
    finally:
        found.tower = tower
    assert seen == expected
