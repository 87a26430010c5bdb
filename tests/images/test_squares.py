"""Sizes, tokens and pixels of images, compared with those of transformers."""

import numpy as np
import pytest
import torch

from paceline.core.errors import ConfigError, RequestError
from paceline.images.decode import ImageReader
from paceline.runner.vision.spec import CLIP_MEAN, CLIP_STD
from tests.golden.image_models import image_model
from tests.golden.image_sizes import IDS, random_image
from tests.images.support import LIMITS, encode, reader

SIZES = [(30, 30), (61, 20), (8, 190), (199, 200), (100, 33), (2, 9), (12, 20)]
PATCH, MERGE, FRAMES = 4, 2, 2


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_those_of_transformers(size: tuple[int, int]) -> None:
    image = random_image(*size)
    theirs = image_model("Qwen2_5_VL").processor([image], return_tensors="np")
    _, rows, columns = theirs["image_grid_thw"][0].tolist()
    found = reader("Qwen2_5_VL").read(encode("a<|image_pad|>b"), [image])
    (image,) = found.images
    assert image.content is not None
    pixels = image.content["pixels"]
    assert pixels.shape == (rows * PATCH, columns * PATCH, 3)
    assert (image.offset, image.length) == (1, rows * columns // MERGE**2)
    assert len(found.token_ids) == image.length + 2
    scaled = (pixels / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
    cut = torch.from_numpy(scaled).view(
        *(rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
    )
    patches = cut.permute(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, 3, 1, -1)
    expected = theirs["pixel_values"].reshape(rows * columns, 3, FRAMES, -1)
    assert np.allclose(patches.expand(-1, -1, FRAMES, -1), expected, atol=1e-5)


def test_an_image_that_is_much_longer_than_wide_is_refused() -> None:
    with pytest.raises(RequestError, match="200 times as long"):
        reader("Qwen2_5_VL").read(encode("<|image_pad|>"), [random_image(201, 1)])


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_of_pixtral(size: tuple[int, int]) -> None:
    """Tokens end the rows of an image, which is one input."""
    model, image = image_model("Mistral3"), random_image(*size)
    theirs = model.processor([image], return_tensors="np")
    height, width = theirs["image_sizes"][0]
    found = reader("Mistral3").read(encode("a[IMG]b"), [image])
    row = "[IMG]" * (width // 8)
    rows = (row + "[IMG_BREAK]") * (height // 8 - 1) + row + "[IMG_END]"
    assert found.token_ids == encode(f"a{rows}b")
    (input,) = found.images
    assert input.content is not None
    assert (input.offset, input.end) == (1, len(found.token_ids) - 1)
    among = input.content["tokens"]
    assert np.array_equal(among >= 0, np.array(found.token_ids[1:-1]) != IDS["[IMG]"])
    scaled = (input.content["pixels"] / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
    assert np.allclose(scaled.transpose(2, 0, 1), theirs["pixel_values"][0], atol=1e-5)


def test_a_tokenizer_without_ends_of_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the tokenizer has no token '\[IMG_BREAK\]'"):
        ImageReader.load(image_model("Mistral3").folder, lambda text: [*text.encode()], LIMITS)
