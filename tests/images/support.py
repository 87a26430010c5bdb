"""Readers of small models, and images as files."""

from functools import cache
from io import BytesIO
from typing import Any

from PIL import Image

from paceline.images.decode import ImageLimits, ImageReader
from tests.golden.image_models import image_model, tokenizer
from tests.golden.image_sizes import Pixels, random_image

LIMITS = ImageLimits(images=4, pixels=200 * 200)


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


@cache
def reader(name: str) -> ImageReader:
    found = ImageReader.load(image_model(name).folder, encode, LIMITS)
    assert found is not None
    return found


def file_of(pixels: Pixels, form: str = "PNG", **options: Any) -> bytes:
    """The content of a file with an image."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


PICTURE = random_image(20, 30)
