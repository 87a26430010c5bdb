"""Encoders of images, as the store of embeddings sees them."""

import pytest

from paceline.runner.vision.image_encoder import Tile
from tests.golden.image_models import image_model


@pytest.mark.parametrize(
    ("name", "square", "tile"), [("SmolVLM", 0, Tile(28, 4)), ("Qwen2_5_VL", 8, None)]
)
def test_sizes_of_images(name: str, square: int, tile: Tile | None) -> None:
    found = image_model(name).ours().images
    assert found is not None
    assert (found.width, found.square, found.tile) == (32, square, tile)


def test_a_rehearsal_encodes_as_many_images_as_a_step_may() -> None:
    found = image_model("SmolVLM").ours().images
    assert found is not None
    seen: list[int] = []
    tower, found.tower = found.tower, lambda images: seen.append(len(images)) or []
    try:
        for embeddings in (2, 9):
            found.rehearse(embeddings)
    finally:
        found.tower = tower
    assert seen == [1, 2]
