import pytest
import torch

from paceline.runner.vision.siglip import position_ids
from tests.golden.image_models import close, image_model, random_image

# The first row of patches of 25, as transformers numbers them.
ROUNDED = [*range(5), 4, 5, 7, 8, 8, 9, 11, 11, *range(13, 18), 17, 19, 19, *range(21, 25)]


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM"])
def test_embeddings_are_those_of_transformers(name: str) -> None:
    model = image_model(name)
    tiles = [torch.from_numpy(random_image(30, 30, seed)) for seed in range(3)]
    scaled = torch.stack(tiles).permute(0, 3, 1, 2).float() / 255
    theirs = model.theirs.get_image_features((scaled[None] - 0.5) / 0.5).pooler_output[0]
    images = model.ours().images
    assert images is not None
    close(torch.cat(images.tower(tiles)), theirs)


def test_positions_are_rounded_as_in_training() -> None:
    """With 25 patches along a side, fractions are not exact and some positions repeat."""
    assert position_ids(4).tolist() == list(range(16))
    assert len(set(position_ids(32).tolist())) == 32 * 32
    assert position_ids(25)[:25].tolist() == ROUNDED
