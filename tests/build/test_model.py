"""Models by name and by form, and the words of those that have none."""

import json
from pathlib import Path

import pytest

from paceline import LLM, ConfigError, SamplingParams
from paceline.build.assembly import device_of
from paceline.build.cuda import capturable
from paceline.build.model import find_model
from paceline.build.words import bytes_as_tokens
from paceline.hub.progress import silent
from paceline.runner.models.shape import config_in, named_shapes
from paceline.text.tokenizer import Tokenizer
from tests.golden.support import SIZES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that describes a small model and has no weights."""
    described = {"architectures": ["LlamaForCausalLM"], **SIZES}
    (tmp_path / "config.json").write_text(json.dumps(described))
    return tmp_path


def test_every_shape_that_comes_along_can_be_read() -> None:
    assert {"qwen3-0.6b", "qwen3-8b", "qwen3-14b", "llama-3.1-8b"} <= set(named_shapes())
    for name in named_shapes():
        assert config_in(name).layers >= 16


def test_a_shape_without_weights_says_how_to_run_it() -> None:
    with pytest.raises(ConfigError, match="load_format 'dummy'"):
        find_model("qwen3-0.6b", "auto", "cpu", silent)
    with pytest.raises(ConfigError, match=r"no shape 'qwen4'.*qwen3-0.6b"):
        find_model("qwen4", "dummy", "cpu", silent)


def test_a_shape_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        find_model(str(folder), "dummy", "cpu", silent)


@pytest.mark.parametrize("attention", ["triton", "flashinfer"])
def test_attention_of_a_card_is_refused_on_a_cpu(folder: Path, attention: str) -> None:
    with pytest.raises(ConfigError, match=attention):
        LLM(str(folder), load_format="dummy", device="cpu", attention=attention)


@pytest.mark.parametrize("attention", ["sdpa", "native", "paged"])
def test_attention_that_cannot_be_captured_is_refused_on_a_card(attention: str) -> None:
    with pytest.raises(ConfigError, match=f"{attention}.* cannot be part of a graph"):
        capturable(attention)


def test_a_form_that_is_not_there_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError):
        find_model(str(folder), "gguf", "cpu", silent)


def test_bytes_are_tokens_where_there_are_no_words() -> None:
    tokenizer = Tokenizer(bytes_as_tokens(6000))
    text = "Grüße, 世界\n"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([5000]) == "<5000>"
    assert tokenizer.vocab_size == 6000


def test_random_weights_answer_the_same_twice(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    settings = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01, "max_num_seqs": 4}
    told = [
        LLM(str(folder), **settings).generate([[1, 2, 3]], params, progress=False)[0].outputs[0]
        for _ in range(2)
    ]
    assert told[0].token_ids == told[1].token_ids
    assert len(told[0].token_ids) == 6


def test_a_card_is_asked_for_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_of("auto") == device_of("cpu") == "cpu"
    with pytest.raises(ConfigError, match="no card"):
        device_of("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert device_of("auto") == "cuda"
