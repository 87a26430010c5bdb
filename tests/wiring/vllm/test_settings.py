"""Keywords of vLLM pass, are mapped, or are refused by name; none is unknown."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline import LLM, ConfigError, SamplingParams
from paceline.core.adapter import AdapterConfig
from paceline.core.settings.features import RecordConfig
from paceline.core.settings.load import LoadConfig
from paceline.llm import LLM_ARGUMENTS
from paceline.wiring.processes.serving import SERVER_ARGUMENTS
from paceline.wiring.settings import pop_settings, sort_settings
from paceline.wiring.vllm.settings import translated
from paceline.wiring.vllm.table import VLLM

# Every field of `EngineArgs` of vLLM 0.33.0, and its default where that is a plain value.
ENGINE_ARGS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vllm_engine_args.json").read_text(encoding="utf-8")
)
# The keywords that scripts give, each with a value that changes nothing here or has a meaning.
KEYWORDS: dict[str, Any] = {
    "tokenizer": None,
    "tokenizer_mode": "auto",
    "skip_tokenizer_init": False,
    "trust_remote_code": True,
    "allowed_local_media_path": "",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "dtype": "bfloat16",
    "quantization": None,
    "revision": "main",
    "tokenizer_revision": None,
    "seed": 7,
    "gpu_memory_utilization": 0.9,
    "swap_space": 0,
    "cpu_offload_gb": 0,
    "enforce_eager": True,
    "disable_custom_all_reduce": True,
    "hf_token": None,
    "hf_overrides": {},
    "mm_processor_kwargs": None,
    "pooler_config": None,
    "override_pooler_config": None,
    "kv_cache_memory_bytes": 8 << 20,
    "compilation_config": {"level": 3},
    "logits_processors": [],
    "task": "generate",
    "runner": "generate",
    "convert": "auto",
    "generation_config": "vllm",
    "override_generation_config": {},
    "served_model_name": "tiny",
    "disable_log_stats": True,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": None,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": None,
    "block_size": 16,
    "distributed_executor_backend": "mp",
    "download_dir": None,
    "load_format": "dummy",
    "limit_mm_per_prompt": {"image": 1},
    "async_scheduling": None,
    "scheduling_policy": "fcfs",
    "kv_cache_dtype": "auto",
    "attention_backend": None,
    "use_tqdm_on_load": False,
}


def in_ours(settings: dict[str, Any], model: str = "m") -> dict[str, Any]:
    return translated(model, settings, LLM_ARGUMENTS)[1]


def test_there_are_keywords() -> None:
    assert len(KEYWORDS) >= 48
    assert len(ENGINE_ARGS) > 250


@pytest.mark.parametrize("name", ENGINE_ARGS)
def test_every_field_of_vllm_is_known_and_its_default_passes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    if name in ("model", "revision"):
        return
    assert name in LLM_ARGUMENTS or name in VLLM
    rest = in_ours({name: ENGINE_ARGS[name]})
    for kind in (AdapterConfig, RecordConfig):
        pop_settings(kind, rest)
    sort_settings(rest)
    assert not caplog.messages


@pytest.mark.parametrize("name", VLLM)
def test_every_value_of_the_table_passes_is_mapped_or_is_refused_by_name(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    if VLLM[name].read is not None or name in LLM_ARGUMENTS:
        return
    if VLLM[name].ignored:
        assert not in_ours({name: "strange"})
        (message,) = caplog.messages
        assert f"without effect here: {name} (" in message
        return
    with pytest.raises(ConfigError, match=f"^{name} is 'strange', which is not supported: "):
        in_ours({name: "strange"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pipeline_parallel_size", 2),
        ("hf_overrides", {"rope_theta": 1}),
        ("cpu_offload_gb", 4),
        ("tokenizer", "other/model"),
        ("logits_processors", [print]),
        ("data_parallel_size", 2),
        ("pooler_config", {"softmax": True}),
        ("pooler_config", SimpleNamespace(pooling_type="MEAN", softmax=True)),
        ("api_key", "secret"),
        ("structured_outputs_config", "{"),
        ("otlp_traces_endpoint", "http://a"),
    ],
)
def test_what_needs_something_that_is_lacking_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} (is|has) .*not"):
        in_ours({name: value})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"scheduling_policy": "priority"}, {"policy": "priority"}),
        ({"kv_cache_memory_bytes": 1 << 29}, {"kv_cache_gib": 0.5}),
        ({"structured_outputs_config": {"backend": "guidance"}},
         {"structured_outputs_backend": "guidance"}),
        ({"structured_outputs_config": '{"backend": "xgrammar"}'},
         {"structured_outputs_backend": "xgrammar"}),
        ({"pooler_config": {"pooling_type": "MEAN"}}, {"pooling": "mean"}),
        ({"attention_backend": "FLASHINFER"}, {"attention": "flashinfer"}),
        ({"attention_backend": "TORCH_SDPA"}, {"attention": "auto"}),
        ({"spec_model": "a/b", "spec_tokens": 3},
         {"speculative_model": "a/b", "num_speculative_tokens": 3}),
        ({"dtype": torch.float16}, {"dtype": "float16"}),
        ({"max_model_len": -1, "block_size": None}, {}),
        ({"chat_template": Path("a.jinja")}, {"chat_template": "a.jinja"}),
        ({"tokenizer": "m", "scheduler_reserve_full_isl": False}, {"reserve_full_prompt": False}),
        ({"nonsense": 3}, {"nonsense": 3}),
        ({"attention_config": {"backend": "FLASHINFER", "other": 3}}, {"attention": "flashinfer"}),
        ({"pooler_config": SimpleNamespace(pooling_type="MEAN")}, {"pooling": "mean"}),
    ],
)  # fmt: skip
def test_what_has_a_meaning_here_is_mapped(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert in_ours(theirs) == ours


def test_a_server_takes_its_key_and_its_names() -> None:
    given = {"api_key": "secret", "served_model_name": ["a", "b"]}
    assert translated("m", given, SERVER_ARGUMENTS)[1] == {
        "api_keys": ("secret",),
        "aliases": ("a", "b"),
    }
    assert in_ours({"served_model_name": "a"}) == {}


@pytest.mark.parametrize("name", VLLM)
def test_every_setting_of_the_table_has_a_reason(name: str) -> None:
    assert VLLM[name].reason


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("kv_cache_memory_bytes", "4G", "it must be a number of bytes"),
        ("structured_outputs_config", "3", "it must be an object with fields"),
        ("structured_outputs_config", 3, "it must be an object with fields"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is .*{complaint}"):
        in_ours({name: value})


def test_words_of_vllm_for_values() -> None:
    assert LoadConfig(dtype="half", generation_config="vllm") == LoadConfig(
        dtype="float16", generation_config="none"
    )


def test_a_revision_belongs_to_the_name_of_a_repository(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert translated("a/b", {"revision": "v1"}, LLM_ARGUMENTS) == ("a/b@v1", {})
    assert translated("a/b@v1", {"revision": "v1"}, LLM_ARGUMENTS) == ("a/b@v1", {})
    both = {"tokenizer": "a/b", "revision": "v1", "tokenizer_revision": "v1"}
    assert translated("a/b", both, LLM_ARGUMENTS) == ("a/b@v1", {})
    assert translated("a/b:Q4", {"revision": "v1"}, LLM_ARGUMENTS) == ("a/b@v1:Q4", {})
    assert not caplog.messages
    with pytest.raises(ConfigError, match="revision is 'v2', but the model is a/b@v1"):
        translated("a/b@v1", {"revision": "v2"}, LLM_ARGUMENTS)
    assert translated(str(tmp_path), {"revision": "v1"}, LLM_ARGUMENTS) == (str(tmp_path), {})
    assert "only a repository" in caplog.text


def test_all_keywords_of_a_script_at_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        LLM(model=str(model), device="cpu", **KEYWORDS) as llm,
    ):
        (output,) = llm.generate("hello", SamplingParams(max_tokens=3), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 3
        assert llm.max_model_len == 64
    (silent,) = [one for one in caplog.messages if "without effect" in one]
    named = ("revision", "trust_remote_code", "compilation_config", "disable_custom_all_reduce")
    assert all(f"{name} (" in silent for name in named)
    assert "dtype is bfloat16; a CPU computes in float32" in caplog.text


def test_the_seed_of_an_engine_changes_the_samples_of_requests_without_one(model: Path) -> None:
    small: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "kv_cache_gib": 0.001}
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    seeded = replace(plain, seed=5)

    def sampled(seed: int) -> list[Any]:
        with LLM(str(model), seed=seed, **small) as llm:
            outputs = llm.generate(["hello"] * 2, [plain, seeded], progress=False)
            return [one.outputs[0].token_ids for one in outputs]

    (none, own), (one, own_1), (two, own_2) = sampled(0), sampled(1), sampled(2)
    assert sampled(1)[0] == one
    assert len({none, one, two}) == 3
    assert own == own_1 == own_2
