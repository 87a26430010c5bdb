"""Settings: every name is known, every value makes sense, and the complaint says which does not."""

import json
import pickle
import re
from dataclasses import FrozenInstanceError, fields
from math import inf
from types import MappingProxyType
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.config import (
    COMPONENTS,
    CacheConfig,
    Config,
    JournalConfig,
    PolicyConfig,
    PreemptionConfig,
    SpeculationConfig,
    StepConfig,
)
from paceline.core.settings.load import LoadConfig

ALL_OTHERWISE: dict[str, Any] = {
    "num_blocks": 10,
    "block_size": 4,
    "enable_prefix_caching": False,
    "free_order": "lru",
    "enable_kv_cache_events": True,
    "attention_groups": [
        {"kind": "full", "window": 0, "count": 1},
        {"kind": "sliding_window", "window": 8, "count": 5},
    ],
    "state_blocks": 0,  # more not with these drafts
    "snapshots": "last",
    "eviction": "lru",  # no other goes with this free_order
    "model_fingerprint": "m",
    "system_fingerprint": "s",
    "max_num_seqs": 3,
    "max_num_batched_tokens": 100,
    "max_model_len": 50,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 9,
    "reserve_full_prompt": False,
    "watermark": 0.25,
    "discipline": "prefill_first",
    "max_step_s": 0.0,  # not with this discipline
    "slots_for_others": 2,
    "max_wait": 0.5,
    "max_loras": 2,
    "max_num_queued_reqs": 6,
    "max_queued_tokens": 77,
    "queue_timeout_s": 8.5,
    "policy": "fair",
    "victim": "cheapest",
    "ageing_s": 1.5,
    "fill_positions": 7,
    "preempt_on_arrival": True,
    "refuse_late": True,
    "default_deadline_s": 2.5,
    "prefill_tokens_per_s": 3.5,
    "tenant_weights": {"a": 1.0, "b": 2.0},
    "ttft_target_ms": 500.0,
    "itl_target_ms": 40.0,
    "tenant_ttft_target_ms": {"a": 200.0},
    "tenant_itl_target_ms": {"b": 90.0},
    "input_token_weight": 0.5,
    "output_token_weight": 4.5,
    "preemption_mode": "swap",
    "swap_space": 7,
    "recompute_tokens_per_s": 5.5,
    "swap_blocks_per_s": 6.5,
    "num_speculative_tokens": 2,
    "proposer": "some.module.Proposer",
    "max_num_encoder_input_tokens": 30,
    "encoder_cache_size": 40,
    "disable_chunked_mm_input": True,
    "prompt_lookup_min": 3,
    "prompt_lookup_max": 5,
    "speculative_model": "small",
    "suffix_decoding_max_tree_depth": 8,
    "suffix_decoding_max_cached_requests": 3,
    "suffix_decoding_max_spec_factor": 2.0,
    "suffix_decoding_min_token_prob": 0.5,
    "speculation": "fixed",
    "speculation_max_batch_tokens": 8,
    "lookahead_slots": 1,
    "journal_requests": 11,
    "journal_spells": 12,
    "kv_load_failure_policy": "fail",
    "kv_load_timeout_s": 7.5,
}


DEPTH = "suffix_decoding_max_tree_depth is {}; it must lie between 3 and 256"
LOOKUP = "prompt_lookup_max is {}; it must lie between prompt_lookup_min ({}) and 64"


# -- sorting names ----------------------------------------------------------


def test_every_setting_is_found_by_its_name() -> None:
    config = Config.of(**ALL_OTHERWISE)
    assert config.to_dict() == ALL_OTHERWISE
    assert config.cache.block_size == 4
    assert config.step.max_num_seqs == 3
    assert config.policy.victim == "cheapest"
    assert config.preemption.swap_space == 7
    assert config.speculation.lookahead_slots == 1
    assert config.journal.journal_spells == 12


def test_settings_survive_the_way_there_and_back() -> None:
    for config in (Config(), Config.of(), Config.of(**ALL_OTHERWISE)):
        assert Config.of(**config.to_dict()) == config


def test_settings_are_plain_data() -> None:
    flat = Config.of(**ALL_OTHERWISE).to_dict()
    assert json.loads(json.dumps(flat)) == flat
    assert type(flat["tenant_weights"]) is dict


def test_no_name_has_two_meanings() -> None:
    names = Config.names()
    assert len(names) == len(set(names))
    assert set(names) == ALL_OTHERWISE.keys()
    assert {component.name for component in fields(Config)} == COMPONENTS.keys()


def test_an_unknown_name_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError) as complaint:
        Config.of(max_num_seq=8)
    assert str(complaint.value) == "unknown setting 'max_num_seq'; did you mean 'max_num_seqs'?"


def test_an_unknown_name_like_no_other_is_an_error_without_a_hint() -> None:
    with pytest.raises(ConfigError) as complaint:
        Config.of(zebra=1)
    assert str(complaint.value) == "unknown setting 'zebra'"


def test_known_names_do_not_hide_an_unknown_one() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'blocksize'; did you mean 'block_size'"):
        Config.of(block_size=8, num_blocks=4, blocksize=16)


# -- values -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_blocks": 0}, "num_blocks is 0; it must be positive"),
        (
            {"max_num_batched_tokens": 10**12},
            f"max_num_batched_tokens is {10**12}; at most {2**31 - 1}",
        ),
        ({"num_blocks": -4}, "num_blocks is -4; it must be positive"),
        ({"num_blocks": 2**31}, "num_blocks is 2147483648; at most 2147483647"),
        ({"block_size": 0}, "block_size is 0; it must be positive"),
        ({"free_order": "mru"}, "free_order is 'mru'; choose one of unsealed_first, lru"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be positive"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0; it must be positive"),
        ({"max_num_queued_reqs": 0}, "max_num_queued_reqs is 0; it must be positive"),
        ({"max_queued_tokens": -1}, "max_queued_tokens is -1; it cannot be negative"),
        ({"queue_timeout_s": -1.0}, "queue_timeout_s is -1.0; it cannot be negative"),
        ({"max_model_len": 1}, "max_model_len is 1; 2 is the least"),
        (
            {"max_num_batched_tokens": 15, "max_num_seqs": 16},
            "max_num_batched_tokens (15) is less than max_num_seqs (16): "
            "a full batch could not decode in one step",
        ),
        (
            {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": 512,
                "max_model_len": 513,
            },
            "without chunked prefill max_num_batched_tokens (512) must reach max_model_len (513)",
        ),
        (
            {"long_prefill_token_threshold": -1},
            "long_prefill_token_threshold is -1; it cannot be negative",
        ),
        (
            {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": 512,
                "max_model_len": 512,
                "long_prefill_token_threshold": 1,
            },
            "long_prefill_token_threshold cuts prompts, which needs enable_chunked_prefill",
        ),
        ({"watermark": -0.1}, "watermark is -0.1; it must lie in [0, 1)"),
        ({"watermark": 1.0}, "watermark is 1.0; it must lie in [0, 1)"),
        ({"watermark": float("nan")}, "watermark is nan; it must lie in [0, 1)"),
        ({"max_wait": -0.5}, "max_wait is -0.5; it cannot be negative"),
        ({"max_loras": -1}, "max_loras is -1; it cannot be negative"),
        ({"max_wait": float("nan")}, "max_wait is nan; it cannot be negative"),
        ({"victim": "oldest"}, "victim is 'oldest'; choose one of newest, cheapest"),
        ({"input_token_weight": -0.5}, "input_token_weight is -0.5; it cannot be negative"),
        ({"fill_positions": -1}, "fill_positions is -1; it cannot be negative"),
        (
            {
                "policy": "longest",
                "fill_positions": 4,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": 8192,
            },
            "fill_positions cuts prompts, which needs enable_chunked_prefill",
        ),
        (
            {"policy": "longest", "fill_positions": 4, "long_prefill_token_threshold": 9},
            "fill_positions reckons with whole steps for a prompt, which "
            "long_prefill_token_threshold does not allow",
        ),
        (
            {"policy": "longest", "fill_positions": 4, "discipline": "prefill_first"},
            "fill_positions lets prompts and decodes share steps, which discipline "
            "'prefill_first' does not",
        ),
        (
            {"preemption_mode": "flee"},
            "preemption_mode is 'flee'; choose one of recompute, swap, auto",
        ),
        ({"swap_space": -1}, "swap_space is -1; it cannot be negative"),
        (
            {"preemption_mode": "swap"},
            "preemption_mode 'swap' needs a swap_space: blocks for a scheduler, GiB for an engine",
        ),
        ({"recompute_tokens_per_s": 0.0}, "recompute_tokens_per_s is 0.0; it must be positive"),
        ({"swap_blocks_per_s": -1.0}, "swap_blocks_per_s is -1.0; it must be positive"),
        ({"swap_blocks_per_s": float("nan")}, "swap_blocks_per_s is nan; it must be positive"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1; it cannot be negative"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min is 0; it must be positive"),
        ({"prompt_lookup_min": 5}, LOOKUP.format(4, 5)),
        ({"prompt_lookup_max": 65}, LOOKUP.format(65, 2)),
        ({"suffix_decoding_max_tree_depth": 2}, DEPTH.format(2)),
        ({"suffix_decoding_max_tree_depth": 257}, DEPTH.format(257)),
        (
            {"suffix_decoding_max_cached_requests": -1},
            "suffix_decoding_max_cached_requests is -1; it cannot be negative",
        ),
        (
            {"suffix_decoding_max_spec_factor": -0.5},
            "suffix_decoding_max_spec_factor is -0.5; it cannot be negative",
        ),
        (
            {"suffix_decoding_min_token_prob": 1.5},
            "suffix_decoding_min_token_prob is 1.5; it must lie in [0, 1]",
        ),
        ({"lookahead_slots": -1}, "lookahead_slots is -1; it cannot be negative"),
        (
            {"speculation_max_batch_tokens": -1},
            "speculation_max_batch_tokens is -1; it cannot be negative",
        ),
        ({"journal_requests": 0}, "journal_requests is 0; it must be positive"),
        ({"journal_spells": 0}, "journal_spells is 0; it must be positive"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_value_that_makes_no_sense_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(complaint)}$"):
        Config.of(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"ageing_s": 0.0},
        {"ageing_s": float("nan")},
        {"default_deadline_s": -1.0},
        {"prefill_tokens_per_s": 0.0},
        {"output_token_weight": 0.0},
        {"tenant_weights": {"a": 1.0, "b": 0.0}},
    ],
)
def test_times_rates_and_weights_are_positive(settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    named = "the weight of tenant 'b'" if name == "tenant_weights" else name
    with pytest.raises(ConfigError, match=rf"^{named} is \S+; it must be positive$"):
        Config.of(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 1, "block_size": 1},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 2},
        {"max_num_seqs": 16, "max_num_batched_tokens": 16},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 512, "max_model_len": 512},
        {"watermark": 0.999},
        {"input_token_weight": 0.0},
        {"ageing_s": float("inf")},
        {"max_num_queued_reqs": 1},
        {"journal_requests": 1, "journal_spells": 1},
        {"speculation_max_batch_tokens": 1},
        {"max_wait": 0.0},
        {"max_wait": float("inf")},
        {"preemption_mode": "swap", "swap_space": 1},
        {"preemption_mode": "auto", "swap_space": 0},
        {"recompute_tokens_per_s": 1e-9, "swap_blocks_per_s": float("inf")},
    ],
    ids="-".join,
)
def test_the_least_and_the_most_that_make_sense_are_taken(settings: dict[str, Any]) -> None:
    flat = Config.of(**settings).to_dict()
    assert {name: flat[name] for name in settings} == settings


COUNTS = [
    setting.name
    for component in COMPONENTS.values()
    for setting in fields(component)
    if type(setting.default) in (int, float)
]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", ["8", None, [8], {}], ids=repr)
def test_a_number_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        Config.of(**{name: value})


def test_weights_that_are_no_mapping_are_refused() -> None:
    for weights in (None, 5, 2.0, {"a": 10**400}):
        with pytest.raises(ConfigError):
            Config.of(tenant_weights=weights)


# -- components -------------------------------------------------------------


@pytest.mark.parametrize(
    "component",
    [
        Config,
        CacheConfig,
        StepConfig,
        PolicyConfig,
        PreemptionConfig,
        SpeculationConfig,
        JournalConfig,
    ],
)
def test_settings_are_never_changed(component: type[Any]) -> None:
    made = component()
    name = fields(component)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, 1)


def test_a_part_made_directly_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="num_blocks is 0"):
        CacheConfig(num_blocks=0)


def test_tenant_weights_are_a_copy_that_cannot_be_written() -> None:
    mine = {"a": 1.0}
    config = PolicyConfig(tenant_weights=mine)  # pyright: ignore[reportArgumentType]
    mine["a"] = -1.0
    assert config.tenant_weights == {"a": 1.0}
    assert isinstance(config.tenant_weights, MappingProxyType)
    with pytest.raises(TypeError):
        config.tenant_weights["a"] = 2.0  # pyright: ignore[reportIndexIssue]


def test_telling_the_settings_gives_no_way_to_change_them() -> None:
    config = Config.of(tenant_weights={"a": 1.0})
    config.to_dict()["tenant_weights"]["a"] = 5.0
    assert config.policy.tenant_weights == {"a": 1.0}


def test_a_setting_of_the_wrong_type_is_refused_by_its_name() -> None:
    wrong: list[tuple[str, Any]] = [
        ("policy", None),
        ("speculation", 5),
        ("tenant_weights", "8"),
        ("tenant_weights", {3: 1.0}),
        ("tenant_weights", {"a": "1"}),
        ("attention_groups", "full"),
        ("attention_groups", []),
        ("attention_groups", ["full"]),
        ("attention_groups", [{"kind": "full", "size": 4}]),
    ]
    for setting in (setting for kind in COMPONENTS.values() for setting in fields(kind)):
        if type(setting.default) is bool:
            wrong += [(setting.name, value) for value in ("no", None, 1)]
        elif type(setting.default) is int:
            wrong += [(setting.name, value) for value in ("8", True, setting.default + 0.5)]
        elif type(setting.default) is float:
            wrong += [(setting.name, value) for value in ("8", True)]
    slipped: list[str] = []
    for name, value in wrong:
        try:
            Config.of(**{name: value})
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError) and str(error).startswith(name):
                continue
        slipped.append(f"{name}={value!r}")
    assert slipped == []


def test_a_part_of_the_wrong_type_is_refused_where_it_is_made() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        CacheConfig(block_size="8")  # pyright: ignore[reportArgumentType]


def test_settings_can_be_sent_to_another_process() -> None:
    config = Config.of(**ALL_OTHERWISE)
    assert pickle.loads(pickle.dumps(config)) == config


def test_all_of_a_card_may_be_used() -> None:
    assert LoadConfig(gpu_memory_utilization=1.0).gpu_memory_utilization == 1.0


def test_more_threads_than_torch_survives_are_refused() -> None:
    assert LoadConfig(threads=1024).threads == 1024
    with pytest.raises(ConfigError, match="threads is 1025; at most 1024"):
        LoadConfig(threads=1025)


def test_states_are_drafted_for_and_swapped() -> None:
    config = Config.of(state_blocks=3, num_speculative_tokens=2, swap_space=8)
    assert config.cache.state_blocks == 3


def test_targets_choose_the_policy_that_keeps_them() -> None:
    assert Config.of(itl_target_ms=40.0).policy.policy == "slo"
    assert Config.of(tenant_ttft_target_ms={"a": 1.0}).policy.policy == "slo"
    assert Config.of(itl_target_ms=40.0, policy="fcfs").policy.policy == "fcfs"
    assert Config.of(itl_target_ms=0.0).policy.policy == "fcfs"


def test_targets_are_of_the_request_its_tenant_or_the_server() -> None:
    service = Config.of(ttft_target_ms=500.0, tenant_ttft_target_ms={"a": 200.0}).service
    assert [service.ttft_s("a", own) for own in (None, 0.1)] == [0.2, 0.1]
    assert (service.ttft_s("b", None), service.itl_s("b", None)) == (0.5, inf)
    with pytest.raises(ConfigError, match="tenant_itl_target_ms of tenant 'a' is 0"):
        Config.of(tenant_itl_target_ms={"a": 0})
