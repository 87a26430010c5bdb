import pytest
import torch

from paceline.runner.vision.towers import Windows, patch_positions
from tests.golden.image_models import close, image_model, random_image


@pytest.mark.parametrize(("height", "width"), [(16, 16), (40, 24), (32, 56), (8, 64)])
def test_embeddings_are_those_of_transformers(height: int, width: int) -> None:
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
    positions = patch_positions(1, 2, 2)
    assert positions[0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert positions[1].tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
