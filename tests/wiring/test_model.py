"""Models by name and by form, and the words of those that have none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, ConfigError, SamplingParams
from paceline.core.settings.load import LoadConfig
from paceline.hub.repository_files import silent
from paceline.runner.attention_backend import load_for
from paceline.runner.models.describe import config_in, named_shapes
from paceline.runner.models.model import Model
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.assembly import build, device_of
from paceline.wiring.model import find_model
from paceline.wiring.model_files import bytes_as_tokens
from tests.conformance.architectures import SIZES
from tests.wiring.assembled import assembled


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
    with pytest.raises(ConfigError, match="load_format to 'dummy'"):
        find_model("llama-3.1-8b", LoadConfig(), "cpu", silent)
    with pytest.raises(ConfigError, match=r"unknown model shape 'qwen4'.*qwen3-0.6b"):
        find_model("qwen4", LoadConfig(load_format="dummy"), "cpu", silent)


def test_a_shape_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not complete"):
        find_model(str(folder), LoadConfig(load_format="dummy"), "cpu", silent)


@pytest.mark.parametrize("attention", ["triton", "flashinfer"])
def test_attention_of_a_card_is_refused_on_a_cpu(folder: Path, attention: str) -> None:
    with pytest.raises(ConfigError, match=attention):
        LLM(str(folder), load_format="dummy", device="cpu", attention=attention)


@pytest.mark.parametrize("attention", ["sdpa", "native", "paged"])
def test_attention_that_cannot_be_captured_is_refused_on_a_card(attention: str) -> None:
    with pytest.raises(ConfigError, match=f"{attention}.* does not run on cuda"):
        load_for(attention, "cuda", "triton")


def test_kv_in_fp8_is_refused_on_a_cpu(folder: Path) -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype is for a GPU; on a CPU, KV is float32"):
        LLM(str(folder), load_format="dummy", device="cpu", kv_cache_dtype="fp8")


@pytest.mark.parametrize("setting", [{"weights": "int8"}, {"threads": 2}])
def test_settings_of_a_cpu_are_refused_on_a_card(folder: Path, setting: dict[str, Any]) -> None:
    found = find_model(str(folder), LoadConfig(load_format="dummy"), "cpu", silent)
    with pytest.raises(ConfigError, match="are for a CPU"):
        assembled("cuda", {}, LoadConfig(**setting), found.checkpoint)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_swap_space_is_memory_of_the_host(folder: Path, device: str) -> None:
    found = find_model(str(folder), LoadConfig(load_format="dummy"), "cpu", silent)
    with pytest.raises(ConfigError, match=r"swap_space requests 900000\.0 GiB of memory"):
        assembled(device, {}, LoadConfig(swap_space=900_000), found.checkpoint)


def test_a_model_is_loaded_for_the_longest_sequence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LongRoPE depends on it."""
    lengths: list[int | None] = []
    load = Model.load

    def noted(*given: Any, max_model_len: int | None = None, **how: Any) -> Model:
        lengths.append(max_model_len)
        return load(*given, max_model_len=max_model_len, **how)

    monkeypatch.setattr(Model, "load", noted)
    found = find_model(str(folder), LoadConfig(load_format="dummy"), "cpu", silent)
    assembled("cpu", {"max_model_len": 32}, LoadConfig(kv_cache_gib=0.01), found.checkpoint)
    assert lengths == [32]


def test_mistakes_are_told_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "load", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ConfigError, match="rude"):
        LLM(str(folder), load_format="dummy", device="cpu", policy="rude")


def test_the_speed_of_swapping_is_measured_where_there_is_a_place_to_swap_to(folder: Path) -> None:
    settings = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01, "max_num_seqs": 4}
    scheduler = build(str(folder), swap_space=0.01, **settings).scheduler
    guessed, found = scheduler.config.preemption, scheduler.state.swapping.rates
    assert found.recompute_tokens_per_s != guessed.recompute_tokens_per_s
    assert found.swap_blocks_per_s != guessed.swap_blocks_per_s


def test_a_form_that_is_not_there_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError):
        find_model(str(folder), LoadConfig(load_format="gguf"), "cpu", silent)


def test_bytes_are_tokens_where_there_are_no_words() -> None:
    tokenizer = Tokenizer(bytes_as_tokens(6000, ""))
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


def test_as_many_threads_compute_as_are_asked_for(folder: Path) -> None:
    before = torch.get_num_threads()
    settings = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01, "max_num_seqs": 4}
    try:
        LLM(str(folder), threads=before + 1, **settings).close()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_card_is_asked_for_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_of("auto") == device_of("cpu") == "cpu"
    with pytest.raises(ConfigError, match="no GPU"):
        device_of("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert device_of("auto") == "cuda"
