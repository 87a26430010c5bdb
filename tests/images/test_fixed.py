"""Images of one size and grids of tiles, compared with those of transformers."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma3Processor,
    InternVLProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from paceline.core.errors import ConfigError
from paceline.images.decode import ImageReader
from paceline.images.fixed import CropProcessor, GridProcessor
from paceline.images.processor import ProcessorFiles
from paceline.runner.vision.spec import CLIP_MEAN, CLIP_STD
from tests.golden.image_models import image_model, tokenizer
from tests.golden.image_sizes import IDS, SPECIAL, Pixels, random_image
from tests.images.support import LIMITS, encode, reader

SIZES = [(30, 30), (61, 20), (17, 190), (100, 100), (199, 33), (2, 9), (44, 45), (24, 96)]
TEXT = "see IMAGE, please"


def bytes_of(scaled: Any) -> Pixels:
    """Pixels [images, height, width, channels] of what a processor of transformers made."""
    images = np.array(scaled).transpose(0, 2, 3, 1)
    return np.round((images * np.array(CLIP_STD) + np.array(CLIP_MEAN)) * 255).astype(np.uint8)


def read(name: str, mark: str, image: Pixels) -> tuple[Sequence[int], Pixels]:
    """Our token ids and pixels of a prompt with an image."""
    found = reader(name).read(encode(TEXT.replace("IMAGE", mark)), [image])
    covered = [place for one in found.images for place in range(one.offset, one.end)]
    assert covered == [at for at, token in enumerate(found.token_ids) if token == IDS[mark]]
    pixels = [one.content["pixels"] for one in found.images if one.content is not None]
    return found.token_ids, np.stack(pixels)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_crops_are_those_of_transformers(size: tuple[int, int]) -> None:
    image = random_image(*size)
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer())
    processor = image_model("Llava").processor
    theirs = LlavaProcessor(
        processor,
        words,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )(images=[image], text=TEXT.replace("IMAGE", "<image>"))
    ids, pixels = read("Llava", "<image>", image)
    assert list(ids) == theirs["input_ids"][0]
    assert np.array_equal(pixels, bytes_of(theirs["pixel_values"]))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_grids_are_those_of_transformers(size: tuple[int, int]) -> None:
    image, model = random_image(*size), image_model("InternVL")
    theirs = model.processor([image], return_tensors="np")
    # The whole processor needs torchvision, for videos.
    tokens: Any = SimpleNamespace(
        start_image_token="<img>",
        end_image_token="</img>",
        image_token="<IMG_CONTEXT>",
        image_seq_length=model.family.sizes["image_seq_length"],
    )
    shown = InternVLProcessor.replace_image_token(tokens, theirs, 0)
    ids, pixels = read("InternVL", "<IMG_CONTEXT>", image)
    assert list(ids) == encode(TEXT.replace("IMAGE", shown))
    assert np.array_equal(pixels, bytes_of(theirs["pixel_values"]))


def with_newlines() -> Tokenizer:
    """The tokenizer of small models, with tokens for two, three and four newlines."""
    newline, words = "Ċ", tokenizer().get_vocab()
    merges = [(newline, newline), (newline * 2, newline), (newline * 2, newline * 2)]
    own = {first + second: len(words) + place for place, (first, second) in enumerate(merges)}
    found = Tokenizer(models.BPE({**words, **own}, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return found


@pytest.mark.parametrize(
    "text",
    ["see IMAGE.", "user\nIMAGEIMAGE\n\nwhat", "IMAGE\n", "\n\nIMAGE IMAGE\n\n", "a\n\nIMAGE"],
)
@pytest.mark.parametrize("has_newlines", [True, False])
def test_newlines_around_images_are_those_of_transformers(text: str, has_newlines: bool) -> None:
    model, backend = image_model("Gemma3"), with_newlines() if has_newlines else tokenizer()
    roles = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    special = {**roles, "image_token": "<image_soft_token>"}
    words = PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=special)
    text, images = text.replace("IMAGE", "<start_of_image>"), [random_image(20, 50)] * 2
    images = images[: text.count("<start_of_image>")]
    theirs = Gemma3Processor(model.processor, words, image_seq_length=9)(images=images, text=text)

    def ids_of(text: str) -> list[int]:
        return backend.encode(text, add_special_tokens=False).ids

    reading = ImageReader.load(model.folder, ids_of, LIMITS)
    assert reading is not None
    found = reading.read(ids_of(text), images)
    expected = theirs["input_ids"][0]
    assert found.token_ids == expected
    mark = words.convert_tokens_to_ids("<image_soft_token>")
    assert [one.offset for one in found.images] == [
        at for at, id in enumerate(expected) if id == mark and expected[at - 1] != mark
    ]


def files(**settings: Any) -> ProcessorFiles:
    return ProcessorFiles({}, {"image_size": 28, "patch_size": 7}, settings, encode)


def test_an_image_may_be_padded_or_stretched_to_a_square() -> None:
    wide = Image.fromarray(np.full((14, 28, 3), 200, np.uint8))
    both = {"height": 28, "width": 28}
    padded = CropProcessor(files(size=both, do_pad=True, image_mean=[0.2, 0.4, 0.6]))
    (input,) = padded.prepare(wide).inputs
    assert input.content is not None
    pixels = input.content["pixels"]
    assert pixels[0, 0].tolist() == [51, 102, 153]
    assert pixels[14, 14].tolist() == [200, 200, 200]
    (input,) = CropProcessor(files(size=both)).prepare(wide).inputs
    assert input.content is not None
    assert np.unique(input.content["pixels"]).tolist() == [200]


@pytest.mark.parametrize("kind", [CropProcessor, GridProcessor])
def test_sizes_that_differ_from_those_of_the_tower_are_refused(kind: Any) -> None:
    for size in ({"height": 14, "width": 28}, 32):
        with pytest.raises(ConfigError, match="the vision tower reads images of 28"):
            kind(files(size=size))
    with pytest.raises(ConfigError, match="must have a width and a height"):
        kind(files(size={"shortest_edge": 28}))
