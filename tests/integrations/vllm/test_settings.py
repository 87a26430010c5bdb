"""Settings and requests from vLLM's, and what is refused."""

from dataclasses import replace
from math import inf

import pytest

from paceline.core.errors import ConfigError
from paceline.integrations.vllm.settings import (
    REFUSED,
    EngineLimits,
    hints,
    refuse,
    scheduler_config,
)

LIMITS = EngineLimits(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=128,
    num_blocks=33,
    block_size=16,
    policy="fcfs",
    enable_prefix_caching=True,
    enable_chunked_prefill=True,
    long_prefill_token_threshold=0,
    max_loras=2,
    num_speculative_tokens=3,
)


def test_limits_of_the_engine_bind_the_scheduler() -> None:
    flat = scheduler_config(LIMITS, {}).to_dict()
    assert flat["num_blocks"] == 32, "vLLM keeps one block"
    assert (flat["max_loras"], flat["num_speculative_tokens"]) == (2, 3)
    assert (flat["max_num_seqs"], flat["max_model_len"]) == (8, 128)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_with_a_policy_of_vllm_it_decides_as_vllm(policy: str) -> None:
    flat = scheduler_config(replace(LIMITS, policy=policy), {}).to_dict()
    assert (flat["policy"], flat["free_order"]) == (policy, "lru")
    assert (flat["reserve_full_prompt"], flat["ageing_s"]) == (False, inf)


@pytest.mark.parametrize("policy", ["fair", "deadline", "shortest", "longest"])
def test_with_a_policy_of_ours_the_defaults_are_ours(policy: str) -> None:
    flat = scheduler_config(LIMITS, {"policy": policy, "watermark": 0.01}).to_dict()
    assert (flat["policy"], flat["watermark"]) == (policy, 0.01)
    assert (flat["reserve_full_prompt"], flat["ageing_s"]) == (True, 60.0)


def test_a_setting_that_is_chosen_wins() -> None:
    flat = scheduler_config(LIMITS, {"reserve_full_prompt": True, "ageing_s": 5.0}).to_dict()
    assert (flat["reserve_full_prompt"], flat["ageing_s"]) == (True, 5.0)


def test_without_chunks_a_prompt_fits_into_a_step() -> None:
    whole = replace(LIMITS, enable_chunked_prefill=False)
    assert scheduler_config(whole, {}).step.max_model_len == 64


def test_a_setting_of_vllm_cannot_be_chosen() -> None:
    with pytest.raises(
        ConfigError, match=r"'max_num_seqs' cannot be set .* vLLM has a flag for it"
    ):
        scheduler_config(LIMITS, {"max_num_seqs": 4})


@pytest.mark.parametrize("name", ["swap_space", "polcy"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' cannot be set"):
        scheduler_config(LIMITS, {name: 1})


def test_features_that_are_missing_are_named_with_the_reason() -> None:
    refuse(dict.fromkeys(REFUSED, False))
    used = dict.fromkeys(REFUSED, False) | {"pooling": True, "kv_transfer_config": True}
    with pytest.raises(ConfigError, match=r"pooling \(.*\); kv_transfer_config \(.*block manager"):
        refuse(used)


def test_hints_for_policies_are_taken_from_extra_args() -> None:
    given = {"tenant": "team-7", "deadline": 2.0, "token_deadline": 0.5, "other": 1}
    assert hints(given) == {"tenant": "team-7", "deadline": 2.0, "token_deadline": 0.5}


def test_without_extra_args_there_are_no_hints() -> None:
    assert hints(None) == hints({}) == {}
