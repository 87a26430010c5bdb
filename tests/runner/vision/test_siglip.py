import pytest
import torch
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings

from paceline.runner.vision.towers import position_ids
from tests.golden.image_models import close, image_model, random_image


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM"])
def test_embeddings_are_those_of_transformers(name: str) -> None:
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
    assert position_ids(side).tolist() == found.flatten().tolist()


def test_some_patches_have_the_position_of_a_neighbour() -> None:
    assert len(set(position_ids(32).tolist())) == 32 * 32
    assert len(set(position_ids(25).tolist())) < 25 * 25
