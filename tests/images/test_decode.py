from base64 import b64encode
from io import BytesIO
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from PIL import Image

from paceline.core.errors import RequestError
from paceline.images.decode import FORMATS, decoded
from tests.images.support import PICTURE, file_of

MOST = 10_000


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form: str) -> None:
    found = np.asarray(decoded(file_of(PICTURE, form), MOST))
    assert found.shape == PICTURE.shape
    if form in ("PNG", "BMP", "TIFF"):
        assert np.array_equal(found, PICTURE)


def test_forms_of_one_image() -> None:
    file = file_of(PICTURE)
    url = f"data:image/png;base64,{b64encode(file).decode()}"
    for source in (PICTURE, Image.fromarray(PICTURE), file, url):
        assert np.array_equal(np.asarray(decoded(source, MOST)), PICTURE)
    quoted = "data:image/png," + "".join(f"%{byte:02x}" for byte in file)
    assert np.array_equal(np.asarray(decoded(quoted, MOST)), PICTURE)


def test_transparent_parts_become_white_and_grey_becomes_rgb() -> None:
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert np.asarray(decoded(clear, MOST)).min() == 255
    grey = np.full((2, 2, 1), 7, np.uint8)
    assert np.asarray(decoded(grey, MOST)).tolist() == [[[7, 7, 7]] * 2] * 2


def test_a_photograph_that_was_taken_upright_is_turned() -> None:
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(PICTURE).save(file, "JPEG", exif=exif)
    assert decoded(file.getvalue(), MOST).size == (PICTURE.shape[0], PICTURE.shape[1])


def bomb(width: int, height: int) -> bytes:
    """The head of a PNG that claims to be large."""
    file = bytearray(file_of(PICTURE))
    file[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    file[29:33] = crc32(file[12:29]).to_bytes(4, "big")
    return bytes(file)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"", "no known format"),
        (b"GIF89a", "no known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no known format"),
        (file_of(PICTURE)[:60], "cannot be decoded"),
        (np.zeros((200, 200, 3), np.uint8), "200 x 200 pixels; the most is 10000"),
        (bomb(101, 100), "^an image has 101 x 100 pixels"),
        (bomb(20_000, 20_000), "too large|20000 x 20000"),
        (bomb(10_000, 10_000), "10000 x 10000"),
        (np.zeros((4, 4), np.uint8), r"the shape \[4, 4\]"),
        (np.zeros((4, 4, 3)), "float64"),
        (7, "an image is 'int'"),
        (Image.open(BytesIO(file_of(PICTURE)[:60])), "cannot be decoded"),
        ("http://example.com/a.png", "allowed_media_domains"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,a?b", "not base64"),
        ("data:image/png;base64,aGVsbG8=", "no known format"),
    ],
)
def test_a_broken_image_is_refused_with_the_reason(source: Any, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        decoded(source, MOST)
