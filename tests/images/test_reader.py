import pytest

from paceline.core.errors import RequestError
from paceline.images.decode import PROCESSORS, ImageReader
from paceline.runner.models.traits import Traits, architectures
from tests.golden.image_sizes import random_image
from tests.images.support import LIMITS, PICTURE, encode, reader


def test_each_mark_has_an_image() -> None:
    read = reader("Qwen2_5_VL").read
    with pytest.raises(RequestError, match="1 images, but 2 marks"):
        read(encode("<|image_pad|> <|image_pad|>"), [PICTURE])
    with pytest.raises(RequestError, match="2 images, but 1 marks"):
        read(encode("<|image_pad|>"), [PICTURE, PICTURE])
    with pytest.raises(RequestError, match="5 images; the most is 4"):
        read(encode("<|image_pad|>" * 5), [PICTURE] * 5)


def test_offsets_count_the_images_before() -> None:
    images = [random_image(16, 16), random_image(24, 24), random_image(16, 16)]
    found = reader("Qwen2_5_VL").read(encode("a<|image_pad|>bc" * 3), images)
    assert [(image.offset, image.length) for image in found.images] == [(1, 4), (8, 9), (20, 4)]
    assert found.images[0].identity == found.images[2].identity != found.images[1].identity


def test_a_model_of_text_has_no_reader(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("text")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert ImageReader.load(folder, encode, LIMITS) is None


def test_every_architecture_with_a_tower_has_a_processor() -> None:
    names = {name.removesuffix("ForConditionalGeneration").lower() for name in PROCESSORS}
    assert names == {name for name, traits in architectures().items() if has_tower(traits)}


def has_tower(traits: Traits) -> bool:
    part = traits.text_part
    return traits.vision is not None or (part is not None and part.vision is not None)
