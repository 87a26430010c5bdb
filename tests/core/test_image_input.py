"""Images inside a prompt."""

from typing import Any

import numpy as np
import pytest

from paceline.core.errors import RequestError
from paceline.core.multimodal import ImageContent, ImageInput, wrong_images


def test_content_keeps_its_arrays() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    content = ImageContent.of("image", {"pixels": pixels, "grid": np.array([1, 2])})
    assert np.array_equal(content["pixels"], pixels)
    assert content["pixels"].dtype == np.uint8
    assert content["grid"].tolist() == [1, 2]
    with pytest.raises(KeyError, match="this image has no array 'mask'"):
        content["mask"]
    with pytest.raises(ValueError, match="read-only"):
        content["pixels"][0, 0] = 1


def test_content_does_not_count_for_equality_and_can_be_left_out() -> None:
    image = ImageInput("x", 2, 3, ImageContent.of("image", {}))
    assert image == ImageInput("x", 2, 3)
    assert "content" not in repr(image)
    assert image.end == 5
    assert image.without_content().content is None
    assert image.without_content() == image


def test_images_stand_in_order_and_do_not_overlap() -> None:
    assert "begins before position 2" in wrong_images(
        (ImageInput("x", 0, 2), ImageInput("y", 1, 1)), 3
    )
    assert "begins before position 3" in wrong_images(
        (ImageInput("x", 2, 1), ImageInput("y", 0, 1)), 3
    )
    assert wrong_images((ImageInput("x", 0, 2), ImageInput("y", 2, 1)), 3) == ""


def test_images_of_one_identity_have_one_length() -> None:
    assert "another length" in wrong_images((ImageInput("x", 0, 2), ImageInput("x", 2, 1)), 3)


def test_images_end_within_the_prompt() -> None:
    assert wrong_images((), 3) == wrong_images((ImageInput("x", 2, 1),), 3) == ""
    assert "ends after the prompt of 3 tokens" in wrong_images(
        (ImageInput("x", 0, 1), ImageInput("y", 2, 2)), 3
    )


@pytest.mark.parametrize(
    "fields",
    [(None, 0, 1), ("x", 0.0, 1), ("x", 0, "1"), ("x", -1, 1), ("x", 1, 0), ("x", 2, -1)],
)
def test_an_image_without_identity_offset_or_length_is_refused(
    fields: tuple[Any, ...],
) -> None:
    with pytest.raises(RequestError, match="is no image"):
        ImageInput(*fields)
