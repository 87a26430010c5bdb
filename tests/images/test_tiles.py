"""Tiles, their places among tokens and their pixels, compared with those of transformers."""

import numpy as np
import pytest
from transformers import Idefics3Processor, PreTrainedTokenizerFast

from paceline.core.multimodal import ImageInput
from tests.golden.image_models import image_model, tokenizer
from tests.golden.image_sizes import Pixels, random_image
from tests.images.support import encode, reader

SIZES = [(30, 30), (61, 20), (17, 190), (100, 100), (199, 33), (2, 9), (44, 45)]


def pixels_of(image: ImageInput) -> Pixels:
    assert image.content is not None
    return image.content["pixels"]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_and_tokens_are_those_of_transformers(size: tuple[int, int]) -> None:
    image, text = random_image(*size), "see <image>, please"
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer())
    theirs = Idefics3Processor(image_model("Idefics3").processor, words, image_seq_len=4)(
        images=[[image]], text=text
    )
    ours = reader("Idefics3").read(encode(text), [image])
    assert ours.token_ids == theirs["input_ids"][0]
    tiles = np.array(theirs["pixel_values"][0])  # [tiles, channels, height, width]
    expected = np.round((tiles * 0.5 + 0.5) * 255).transpose(0, 2, 3, 1)
    assert np.array_equal(np.stack([pixels_of(image) for image in ours.images]), expected)


def test_images_lie_on_the_tokens_of_images() -> None:
    found = reader("SmolVLM").read(encode("a<image>b<image>"), [random_image(100, 40)] * 2)
    mark = encode("<image>")[0]
    covered = [place for image in found.images for place in range(image.offset, image.end)]
    assert covered == [at for at, token in enumerate(found.token_ids) if token == mark]


def test_equal_tiles_have_one_identity() -> None:
    read = reader("Idefics3").read
    first, again = (read(encode("<image>"), [random_image(50, 50)]).images for _ in range(2))
    other = read(encode("<image>"), [random_image(50, 50, seed=1)]).images
    assert [image.identity for image in first] == [image.identity for image in again]
    assert not {image.identity for image in first} & {image.identity for image in other}
