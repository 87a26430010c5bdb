"""Files of a model: downloads, the tokenizer and its rules, and images."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import LLM
from paceline.core.errors import ConfigError, RequestError
from paceline.core.settings.load import LoadConfig
from paceline.engine.params import SamplingParams
from paceline.runner.cuda.model import CUDA
from paceline.runner.weights.checkpoint import verify
from paceline.runner.weights.files import open_checkpoint
from paceline.text.tokenizer import Tokenizer
from paceline.wiring import cpu
from paceline.wiring import model_files as images
from paceline.wiring.model_files import (
    bytes_as_tokens,
    check_config,
    download,
    images_per_prompt,
    load_images,
    sampling_rules,
)
from paceline.wiring.vllm.values import as_json
from tests.engine.support import tokenizer
from tests.golden.image_models import image_model
from tests.golden.image_sizes import random_image
from tests.hub.support import Hub, configured, serving

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


def files(config: dict[str, object]) -> dict[str, bytes]:
    content = json.dumps(config).encode()
    return {"config.json": content, "tokenizer.json": b"{}", "model.safetensors": b"w" * 1000}


def test_a_model_that_can_be_run_is_downloaded(tmp_path: Path) -> None:
    with serving(Hub(files=files(LLAMA))) as hub, configured(hub, tmp_path):
        folder = download("owner/small")
    assert (folder / "model.safetensors").read_bytes() == b"w" * 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["BertModel"]},
        {"architectures": ["ModernBertForSequenceClassification"]},
        {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True},
        {"architectures": ["Qwen3Model"]},
        {"architectures": ["Qwen3ForSequenceClassification"]},
    ],
)
def test_models_that_embed_or_score_are_downloaded(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    content = files({**LLAMA, "sliding_window": 8, **changes})
    with serving(Hub(files=content)) as hub, configured(hub, tmp_path):
        folder = download("owner/small")
    assert (folder / "model.safetensors").is_file()


def test_weights_of_an_architecture_that_cannot_be_run_are_not_downloaded(tmp_path: Path) -> None:
    strange = {**LLAMA, "architectures": ["MambaForCausalLM"]}
    with serving(Hub(files=files(strange))) as hub, configured(hub, tmp_path):
        with pytest.raises(ConfigError, match="architecture 'MambaForCausalLM' is not supported"):
            download("owner/small")
        assert hub.fetched() == ["config.json"]


@pytest.mark.parametrize(("content", "complaint"), [("{", "not complete"), ("[]", "JSON object")])
def test_a_config_that_is_not_an_object_is_refused(
    tmp_path: Path, content: str, complaint: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        check_config(file)


def test_a_limit_of_the_whole_vocabulary_allows_all_tokens() -> None:
    words = tokenizer()
    every = SamplingParams(logprobs=-1, prompt_logprobs=-1)
    for most in (-1, words.vocab_size, words.vocab_size + 9):
        sampling_rules(words, LoadConfig(max_logprobs=most)).check(every)
    fewer = sampling_rules(words, LoadConfig(max_logprobs=words.vocab_size - 1))
    with pytest.raises(RequestError, match="logprobs is -1"):
        fewer.check(every)


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


def test_images_are_refused_where_the_text_part_is_loaded() -> None:
    folder = image_model("Gemma3").folder
    assert open_checkpoint(folder).config.vision is not None
    alone = open_checkpoint(folder, text_only=True)
    verify(alone)
    assert alone.config.vision is None
    found = load_images(str(folder), WORDS, LoadConfig(), text_only=True)
    assert found is not None
    with pytest.raises(RequestError, match="images of Gemma3ForConditionalGeneration are not supp"):
        found.read([], [])
    # A model that has no text part is not read without its images.
    assert open_checkpoint(image_model("Llava").folder, text_only=True).config.vision is not None


def test_a_device_that_lacks_the_images_generates_text(monkeypatch: pytest.MonkeyPatch) -> None:
    features = CUDA.features - {"vision.reads_itself=always"}
    monkeypatch.setattr(cpu, "SUPPORT", replace(CUDA, features=features))
    image = {"prompt": "<start_of_image>", "multi_modal_data": {"image": random_image(20, 20)}}
    with LLM(str(image_model("Gemma3").folder), kv_cache_gib=0.01, device="cpu") as llm:
        text, refused = llm.generate(["a cat", image], max_tokens=2, progress=False)
    assert text.outputs[0].token_ids
    assert "only its text part is loaded" in refused.error


def test_a_model_with_a_tower_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(image_model("SmolVLM").folder)
    assert load_images(folder, WORDS, LoadConfig()) is not None
    monkeypatch.setattr(images, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"install paceline\[images\]"):
        load_images(folder, WORDS, LoadConfig())
