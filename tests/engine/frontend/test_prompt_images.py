import pytest

from paceline.core.errors import RequestError
from paceline.core.multimodal import ImagePrompt
from paceline.engine.api import GenerationRequest
from paceline.engine.frontend.entries import read_images
from tests.images.support import PICTURE, encode, reader


def test_images_are_read_if_the_model_reads_any() -> None:
    asked, ids = GenerationRequest(prompt="x"), encode("<|image_pad|>")
    found = read_images(reader("Qwen2_5_VL"), asked, ids, [PICTURE])
    assert isinstance(found, ImagePrompt)
    assert len(found.images) == 1
    with pytest.raises(RequestError, match="reads no images"):
        read_images(None, asked, ids, [PICTURE])


def test_a_prompt_with_images_is_not_truncated() -> None:
    asked = GenerationRequest(prompt="x", truncate_prompt_tokens=5)
    with pytest.raises(RequestError, match="cannot be truncated"):
        read_images(reader("Qwen2_5_VL"), asked, encode("<|image_pad|>"), [PICTURE])
