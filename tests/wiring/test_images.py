from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.load import LoadConfig
from paceline.text.tokenizer import Tokenizer
from paceline.wiring import model_files as images
from paceline.wiring.model_files import bytes_as_tokens, images_per_prompt, load_images
from paceline.wiring.vllm.values import as_json
from tests.golden.image_models import image_model

WORDS = Tokenizer(bytes_as_tokens(256, ""))


def test_the_limit_is_json_or_a_mapping() -> None:
    assert images_per_prompt('{"image": 4}') == 4
    assert images_per_prompt("{}") == 0
    assert as_json({"limit_mm_per_prompt": {"image": 4}}) == {"limit_mm_per_prompt": '{"image": 4}'}
    assert as_json({"seed": 1}) == {"seed": 1}


@pytest.mark.parametrize(
    "given", ["image", "[4]", '{"video": 1}', '{"image": -1}', '{"image": "4"}']
)
def test_a_malformed_limit_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="limit_mm_per_prompt"):
        images_per_prompt(given)


def test_a_model_without_a_tower_has_no_reader(tmp_path: Path) -> None:
    assert load_images(str(tmp_path), WORDS, LoadConfig()) is None
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert load_images(str(tmp_path), WORDS, LoadConfig()) is None


def test_a_model_with_a_tower_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(image_model("SmolVLM").folder)
    assert load_images(folder, WORDS, LoadConfig()) is not None
    monkeypatch.setattr(images, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"install paceline\[images\]"):
        load_images(folder, WORDS, LoadConfig())
