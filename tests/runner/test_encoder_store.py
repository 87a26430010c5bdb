"""Embeddings of images on the device."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.core.errors import StepError
from paceline.core.multimodal import NOTHING_EMBEDDED, Embedded, Encoding, ImageContent, ImageInput
from paceline.core.request import Request
from paceline.runner.encoder_store import EncoderStore

WIDTH = 3


class PixelEncoder:
    """Every pixel is the embedding of one position."""

    width, encodes = WIDTH, True

    def encode(self, images: Sequence[ImageContent]) -> list[Tensor]:
        return [torch.tensor(image["pixels"]) for image in images]


def picture(name: str, offset: int, length: int, pixels: int | None = None) -> ImageInput:
    array = np.full((pixels or length, WIDTH), ord(name), np.float32) + np.arange(WIDTH)
    return ImageInput(
        name, offset, length, ImageContent.of("image", {"pixels": array.astype(np.float32)})
    )


def requests(*images: ImageInput) -> dict[int, Request]:
    return {4: Request("a", [1] * 9, images=images)}  # pyright: ignore[reportArgumentType]


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_images_are_written_to_their_rows_and_read_by_positions() -> None:
    store, asked = (
        EncoderStore(PixelEncoder(), torch.zeros(5, WIDTH)),
        requests(picture("x", 1, 2), picture("y", 4, 1)),
    )
    store.encode([Encoding(4, 0, "x", rows(3, 0)), Encoding(4, 1, "y", rows(2))], asked)
    reads = Embedded(np.array([1, 1, 2]), rows(1, 2, 0), rows(3, 0, 2))
    found = store.read(reads, torch.tensor([0, 2, 5, 6]))
    assert found is not None
    assert found.at.tolist() == [3, 4, 5]
    assert found.values[:, 0].tolist() == [ord("x"), ord("x"), ord("y")]


def test_a_step_without_images_reads_nothing() -> None:
    assert (
        EncoderStore(PixelEncoder(), torch.zeros(1, WIDTH)).read(
            NOTHING_EMBEDDED, torch.tensor([0, 1])
        )
        is None
    )


def test_what_cannot_be_encoded_fails_the_step() -> None:
    store = EncoderStore(PixelEncoder(), torch.zeros(5, WIDTH))
    with pytest.raises(StepError, match="image 'x' came without the content"):
        store.encode([Encoding(4, 0, "x", rows(0))], requests(ImageInput("x", 1, 1)))
    with pytest.raises(StepError, match=r"returned \(2, 3\) values for image 'x'; \(1, 3\)"):
        store.encode([Encoding(4, 0, "x", rows(0))], requests(picture("x", 1, 1, pixels=2)))
