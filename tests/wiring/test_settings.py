"""What is filled in where nobody says it."""

from typing import Any

import pytest
import torch

from paceline import ConfigError
from paceline.core.settings.config import Config
from paceline.core.settings.load import LoadConfig
from paceline.runner.kv_store import KVStore
from paceline.runner.models.describe import config_in
from paceline.wiring.settings import (
    CPU_DEFAULTS,
    CUDA_DEFAULTS,
    SCHEDULER_ONLY,
    Hardware,
    block_bytes,
    check,
    check_memory,
    for_batches,
    gpu_defaults,
    resolve,
    sort_settings,
)
from tests.conformance.architectures import Case
from tests.runner.support import tiny

MODEL = tiny(max_position_embeddings=1024)
STEP = {"max_num_batched_tokens": 10**6}


def test_blocks_divide_a_chunk_of_attention() -> None:
    model, given = Case("llama4").config(), {"max_model_len": 64, "block_size": 4}
    check(given, LoadConfig(), model, CPU_DEFAULTS)
    with pytest.raises(ConfigError, match="block_size is 16, which must divide the 8 positions"):
        check({**given, "block_size": 16}, LoadConfig(), model, CPU_DEFAULTS)


def test_blocks_fill_the_memory_that_is_given() -> None:
    each = block_bytes(MODEL, 16)
    rest, own = sort_settings({"kv_cache_gib": 64 * each / 2**30, "max_num_seqs": 8})
    assert resolve(rest, own, MODEL, Hardware(0)).cache.num_blocks == 64
    rest, own = sort_settings({"max_num_seqs": 2})
    roomy = resolve(rest, own, MODEL, Hardware(2**40))
    assert roomy.cache.num_blocks == 2 * (1024 // 16)  # more than all sequences can use is no use


def test_a_cpu_takes_two_gib_by_default_or_two_long_sequences() -> None:
    rest, own = sort_settings({"max_num_seqs": 64})
    each = block_bytes(MODEL, 16)
    roomy = Hardware(2**40, usual_bytes=300 * each)
    assert resolve(rest, own, MODEL, roomy).cache.num_blocks == 300
    tight = Hardware(2**40, usual_bytes=each)
    assert resolve(rest, own, MODEL, tight).cache.num_blocks == 2 * (1024 // 16)
    assert Hardware.found().usual_bytes == 2 * 2**30
    rest, own = sort_settings({"max_num_seqs": 64, "kv_cache_gib": 400 * each / 2**30})
    assert resolve(rest, own, MODEL, roomy).cache.num_blocks == 400


def test_the_size_of_the_cache_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    resolve({"max_num_seqs": 2}, LoadConfig(), MODEL, Hardware(2**40))
    assert "128 blocks of 16 tokens; kv_cache_gib changes it" in caplog.text


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kv_cache_gib": 500}, r"kv_cache_gib requests 500\.0 GiB of memory, and 4\.0 GiB are"),
        ({"swap_space": 900}, "lower swap_space"),
        ({"kv_cache_gib": 3, "swap_space": 2}, r"swap_space requests 2\.0 .* and 1\.0 GiB are"),
        ({"num_gpu_blocks_override": 10**9}, "lower num_gpu_blocks_override"),
    ],
)
def test_more_memory_than_is_free_is_refused(given: dict[str, Any], complaint: str) -> None:
    rest, own = sort_settings(given)
    with pytest.raises(ConfigError, match=complaint):
        check_memory(rest, own, MODEL, 4 * 2**30)
    check_memory({}, LoadConfig(kv_cache_gib=3, swap_space=1), MODEL, 4 * 2**30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_as_large_as_those_of_a_store(dtype: torch.dtype) -> None:
    assert block_bytes(MODEL, 16, dtype.itemsize) == KVStore(MODEL, 1, 16, dtype).block_bytes


def test_tables_that_do_not_fit_in_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len \(2000000000\) tokens: lower one"):
        check({"max_model_len": 2 * 10**9}, LoadConfig(), MODEL, {"max_num_seqs": 10**6} | STEP)


def test_a_block_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"block_size \(65536\) tokens needs .* lower block_size"):
        resolve({"block_size": 1 << 16}, LoadConfig(), MODEL, Hardware(1 << 20))


def test_a_number_of_blocks_that_is_given_stands() -> None:
    rest, own = sort_settings({"num_gpu_blocks_override": 70, "kv_cache_gib": 1.0})
    assert resolve(rest, own, MODEL, Hardware(0)).cache.num_blocks == 70


def test_more_than_sequences_can_use_keeps_prefixes_where_it_was_asked_for() -> None:
    each = block_bytes(MODEL, 16)
    asked = {"kv_cache_gib": 300 * each / 2**30, "max_num_seqs": 2}
    assert resolve(*sort_settings(asked), MODEL, Hardware(0)).cache.num_blocks == 300
    gpu = Hardware(2**40, 1.0, kept_blocks=500)
    rest, own = sort_settings({"max_num_seqs": 2})
    assert resolve(rest, own, MODEL, gpu).cache.num_blocks == 500
    rest["enable_prefix_caching"] = False
    assert resolve(rest, own, MODEL, gpu).cache.num_blocks == 2 * (1024 // 16)


def test_too_little_memory_shortens_sequences_unless_their_length_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hardware = Hardware(4 * 5 * block_bytes(MODEL, 16))
    rest, own = sort_settings({})
    assert resolve(rest, own, MODEL, hardware).step.max_model_len == 5 * 16
    assert "max_model_len is 80 instead of 1024: there is memory for 5 blocks" in caplog.text
    rest, own = sort_settings({"max_model_len": 256})
    with pytest.raises(
        ConfigError, match="256 and needs 16 blocks of 16, but there is memory for 5"
    ):
        resolve(rest, own, MODEL, hardware)


@pytest.mark.parametrize(
    ("name", "hint"), [("max_num_seq", "max_num_seqs"), ("kv_cache_gb", "kv_cache_gib")]
)
def test_an_unknown_setting_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        sort_settings({name: 1})


@pytest.mark.parametrize("name", SCHEDULER_ONLY)
def test_what_an_engine_finds_out_or_has_no_use_for_is_refused_with_the_reason(name: str) -> None:
    assert name in Config.names()
    with pytest.raises(ConfigError, match=f"{name} is a setting of a scheduler alone: "):
        sort_settings({name: 1})


def test_sequences_that_are_longer_than_the_model_knows_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check({"max_model_len": 1025}, LoadConfig(), MODEL, CPU_DEFAULTS)
    assert "max_model_len is 1025; the model was trained for 1024 positions" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [{"max_model_len": "long"}, {"policy": "rude"}, {"discipline": "none"}, {"speculation": "x"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_mistakes_are_told_without_any_weights(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        check(wrong, LoadConfig(), MODEL, CPU_DEFAULTS)


def test_swapping_needs_a_place_to_swap_to() -> None:
    swapping = {"preemption_mode": "swap"}
    check(swapping, LoadConfig(swap_space=1.0), MODEL, CPU_DEFAULTS)
    with pytest.raises(ConfigError, match="swap_space"):
        check(swapping, LoadConfig(), MODEL, CPU_DEFAULTS)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "recompute"),
        ({"swap_space": 1.0}, "auto"),
        ({"swap_space": 1.0, "preemption_mode": "recompute"}, "recompute"),
    ],
)
def test_a_place_to_swap_to_is_made_use_of(given: dict[str, Any], mode: str) -> None:
    rest, own = sort_settings(given)
    assert resolve(rest, own, MODEL, Hardware(2**40)).preemption.preemption_mode == mode


def test_without_chunks_a_step_takes_the_longest_prompt() -> None:
    rest, own = sort_settings({"enable_chunked_prefill": False, "max_model_len": 768})
    assert resolve(rest, own, MODEL, Hardware(2**40)).step.max_num_batched_tokens == 768
    rest, own = sort_settings({"enable_chunked_prefill": False, "max_num_batched_tokens": 64})
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        resolve(rest, own, MODEL, Hardware(2**40))


def test_a_card_has_defaults_of_its_own_and_numbers_of_its_own_size() -> None:
    each = block_bytes(MODEL, 16, value_bytes=2)
    assert 2 * each == block_bytes(MODEL, 16)
    gpu = Hardware(64 * each, share=1.0, value_bytes=2, defaults=CUDA_DEFAULTS)
    config = resolve({"max_model_len": 512}, LoadConfig(), MODEL, gpu)
    assert config.cache.num_blocks == 64
    assert config.step.max_num_seqs == CUDA_DEFAULTS["max_num_seqs"]
    assert config.step.watermark == CUDA_DEFAULTS["watermark"]


def test_prompts_fill_steps_where_weights_are_large() -> None:
    shapes = {"qwen3-0.6b": 0, "llama-3.1-8b": 256, "qwen3-14b": 256}
    for name, fill in shapes.items():
        assert gpu_defaults(config_in(name), 2) == CUDA_DEFAULTS | {"fill_positions": fill}
    gpu = Hardware(2**40, defaults=gpu_defaults(config_in("qwen3-14b"), 2))
    assert resolve({}, LoadConfig(), MODEL, gpu).policy.fill_positions == 256
    assert resolve({"fill_positions": 64}, LoadConfig(), MODEL, gpu).policy.fill_positions == 64


def test_what_cannot_be_filled_is_refused_only_where_it_was_asked_for() -> None:
    whole: dict[str, Any] = {"policy": "longest", "enable_chunked_prefill": False}
    gpu = Hardware(2**40, defaults=gpu_defaults(config_in("qwen3-14b"), 2))
    assert resolve(whole, LoadConfig(), MODEL, gpu).policy.fill_positions == 0
    with pytest.raises(ConfigError, match="fill_positions cuts prompts"):
        resolve({**whole, "fill_positions": 64}, LoadConfig(), MODEL, gpu)


def test_a_batch_goes_by_its_longest_unless_somebody_says_otherwise() -> None:
    alone = {"max_step_s": 0.0, "slots_for_others": 0}
    ours = {"policy": "longest", "ageing_s": 3600.0} | alone
    assert for_batches({"depth": 1}) == ours | {"depth": 1}
    assert for_batches({"ageing_s": 5.0}) == ours | {"ageing_s": 5.0}
    assert for_batches({"policy": "longest"}) == ours
    assert for_batches({"policy": "fcfs"}) == {"policy": "fcfs"} | alone


@pytest.mark.parametrize(
    ("given", "slots", "spared"),
    [
        ({}, 72, 8),
        ({"max_num_seqs": 40}, 40, 5),
        ({"max_num_seqs": 4}, 4, 0),
        ({"max_num_seqs": 200}, 200, 8),
        ({"max_num_seqs": 4, "slots_for_others": 3}, 4, 3),
        ({"max_num_batched_tokens": 64}, 64, 8),
    ],
)
def test_a_body_leaves_an_eighth_of_the_slots(
    given: dict[str, Any], slots: int, spared: int
) -> None:
    step = resolve(given, LoadConfig(), MODEL, Hardware(2**40)).step
    assert (step.max_num_seqs, step.slots_for_others) == (slots, spared)


@pytest.mark.parametrize(
    "given",
    [
        {"max_num_batched_tokens": 512},
        {"enable_chunked_prefill": False},
        {"discipline": "prefill_first"},
        {"disable_chunked_mm_input": True},
        {"fill_positions": 16},
        for_batches({}),
    ],
)
def test_steps_on_a_cpu_are_bounded_by_time_unless_something_else_bounds_them(
    given: dict[str, Any],
) -> None:
    assert resolve({}, LoadConfig(), MODEL, Hardware(2**40)).step.max_step_s == 0.25
    assert resolve(given, LoadConfig(), MODEL, Hardware(2**40)).step.max_step_s == 0.0
    gpu = Hardware(2**40, defaults=CUDA_DEFAULTS)
    assert resolve({}, LoadConfig(), MODEL, gpu).step.max_step_s == 0.0
    both = {"max_num_batched_tokens": 512, "max_step_s": 0.1}
    assert resolve(both, LoadConfig(), MODEL, Hardware(2**40)).step.max_step_s == 0.1


def test_steps_in_flight_are_those_of_the_device_unless_somebody_says_otherwise() -> None:
    assert LoadConfig().steps_in_flight(by_device=2) == 2
    assert LoadConfig(async_scheduling=False).steps_in_flight(by_device=2) == 1
    assert LoadConfig(depth=3).steps_in_flight(by_device=2) == 3
    with pytest.raises(ConfigError, match="async_scheduling"):
        LoadConfig(async_scheduling=False, depth=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "tpu"),
        ("load_format", "pickle"),
        ("dtype", "int8"),
        ("kv_cache_dtype", "int4"),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.5),
    ],
)
def test_a_wrong_choice_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        sort_settings({name: value})


def test_swapping_is_asked_for_in_gibibytes() -> None:
    each = block_bytes(MODEL, 16)
    rest, own = sort_settings({"preemption_mode": "swap", "swap_space": 8 * each / 2**30})
    config = resolve(rest, own, MODEL, Hardware(2**40))
    assert config.preemption.swap_space == 8
