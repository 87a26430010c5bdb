"""The configs of vLLM, such as `kv_events_config` and `speculative_config`, become our settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.core.settings.features import KVEventsConfig
from paceline.wiring.settings import sort_settings
from paceline.wiring.vllm.configs import kv_events_in, spelled_out, with_role
from tests.engine.kv_events.consumer import Consumer
from tests.engine.kv_events.support import endpoints
from tests.wiring.support import dummy_model

ON: dict[str, Any] = {"enable_kv_cache_events": True, "topic": "kv@pod@model"}


def test_vllm_s_json_is_read_as_it_is() -> None:
    given = {**ON, "publisher": None, "replay_endpoint": None, "endpoint": "tcp://*:7000"}
    expected = KVEventsConfig(True, endpoint="tcp://*:7000", topic="kv@pod@model")
    assert kv_events_in(json.dumps(given)) == expected


@pytest.mark.parametrize("off", ["", "{}", '{"enable_kv_cache_events": false, "hwm": 5}'])
def test_events_are_off_unless_enabled(off: str) -> None:
    assert kv_events_in(off) is None


def test_a_mapping_is_as_good_as_json() -> None:
    for given in (ON, json.dumps(ON)):
        _, load = sort_settings({"kv_events_config": given})
        assert kv_events_in(load.kv_events_config) == KVEventsConfig(True, topic="kv@pod@model")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("{on", "kv_events_config is '{on', which is not JSON: "),
        ("[1]", r"kv_events_config is '\[1\]'; it must be a mapping, such as {\"enable_kv"),
        ('{"endpont": "tcp://*:1"}', "unknown name 'endpont'; did you mean 'endpoint'?"),
        ('{"zzz": 1}', "unknown name 'zzz'; it may have enable_kv_cache_events, publisher, "),
        ('{"hwm": "many"}', "kv_events_config: hwm is 'many'; it must be of type int"),
    ],
)
def test_what_is_wrong_with_events_is_named(given: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        kv_events_in(given)


def settings(events: dict[str, Any], **more: Any) -> dict[str, Any]:
    small = {"num_gpu_blocks_override": 32, "max_model_len": 128, "max_num_seqs": 4}
    return {"load_format": "dummy", "device": "cpu", "kv_events_config": events, **small, **more}


def test_events_need_the_prefix_cache(model: Path) -> None:
    with pytest.raises(ConfigError, match="kv_events_config reports cached prefixes, which needs"):
        LLM(str(model), **settings(ON, enable_prefix_caching=False))


def test_a_setting_of_the_scheduler_alone_says_where_to_look(model: Path) -> None:
    with pytest.raises(ConfigError, match="see kv_events_config"):
        LLM(str(model), enable_kv_cache_events=True)


def test_a_router_knows_what_a_model_has_cached(model: Path) -> None:
    with (
        endpoints() as at,
        LLM(str(model), **settings(at.fields())) as llm,
        Consumer(at.live, at.replay) as router,
    ):
        prompts = [f"{number} is the number of a prompt of some length" for number in range(8)]
        params = SamplingParams(max_tokens=4, temperature=0.0)
        outputs = llm.generate(prompts, params, progress=False)
        last = list(outputs[-1].prompt_token_ids)
        router.until(lambda: router.catch_up() or router.cached(last) == len(last) // 16 * 16)
        kinds = {event["type"] for batch in router.batches for event in batch}
        assert {"AllBlocksCleared", "BlockStored"} <= kinds
        (again,) = llm.generate(prompts[-1:], params, progress=False)
        assert again.usage.cached_tokens == router.cached(last) > 0
        llm.reset_prefix_cache()
        router.until(lambda: router.catch_up() or not router.blocks)


@pytest.mark.parametrize(
    ("given", "connector", "kv_role"),
    [
        ({"role": "prefill"}, "nixl", "kv_producer"),
        ({"role": "decode"}, "nixl", "kv_consumer"),
        ({"role": "decode", "kv_connector": "a.B"}, "a.B", "kv_consumer"),
        (
            {"role": "decode", "kv_transfer_config": {"kv_connector": "a.B"}},
            "a.B",
            "kv_consumer",
        ),
    ],
)
def test_a_role_names_a_connector(given: dict[str, Any], connector: str, kv_role: str) -> None:
    _, own = sort_settings(given)
    assert own.kv_connector == connector
    assert json.loads(own.kv_transfer_config)["kv_role"] == kv_role


def test_options_are_kept() -> None:
    options = {"kv_connector_extra_config": {"lease_s": 5.0}}
    given = with_role({"role": "prefill", "kv_transfer_config": json.dumps(options)})
    assert json.loads(given["kv_transfer_config"])["kv_connector_extra_config"] == {"lease_s": 5.0}


def test_no_role_changes_nothing() -> None:
    assert with_role({"max_num_seqs": 4, "role": "both"}) == {"max_num_seqs": 4, "role": "both"}


def test_a_contradiction_is_named() -> None:
    with pytest.raises(ConfigError, match="role is 'decode', and kv_role is 'kv_producer'"):
        with_role({"role": "decode", "kv_transfer_config": {"kv_role": "kv_producer"}})
    with pytest.raises(ConfigError, match="role is 'middle'"):
        sort_settings({"role": "middle"})


LOOKUP = {"method": "ngram", "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (LOOKUP, {"proposer": "ngram", "num_speculative_tokens": 4}),
        (
            {**LOOKUP, "prompt_lookup_max": 3},
            {"prompt_lookup_min": 2, "prompt_lookup_max": 3},
        ),
        ({**LOOKUP, "prompt_lookup_max": 1}, {"prompt_lookup_min": 1, "prompt_lookup_max": 1}),
        ({**LOOKUP, "prompt_lookup_min": 7}, {"prompt_lookup_min": 7, "prompt_lookup_max": 7}),
        ({"method": "suffix"}, {"proposer": "suffix", "num_speculative_tokens": 24}),
        (
            {"method": "suffix", "suffix_decoding_max_tree_depth": 8},
            {"suffix_decoding_max_tree_depth": 8, "num_speculative_tokens": 8},
        ),
        (
            {"method": "suffix", "num_speculative_tokens": 5},
            {"num_speculative_tokens": 5},
        ),
        (
            {"model": "small", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
            {"proposer": "draft_model", "speculative_model": "small"},
        ),
        (
            {"method": "eagle3", "model": "heads", "num_speculative_tokens": 2},
            {"proposer": "eagle3", "speculative_model": "heads"},
        ),
        ({**LOOKUP, "model": None}, {"proposer": "ngram"}),
    ],
)
def test_names_of_vllm_are_settings(given: dict[str, Any], settings: dict[str, Any]) -> None:
    for form in (given, json.dumps(given)):
        found = spelled_out({"speculative_config": form, "block_size": 8})
        assert settings.items() <= found.items()
        assert found["block_size"] == 8
        scheduler, load = sort_settings({"speculative_config": form})
        assert settings.items() <= scheduler.items()
        assert json.loads(load.speculative_config) == given


def test_without_it_nothing_changes() -> None:
    assert spelled_out({"block_size": 8}) == {"block_size": 8}
    for none in (None, ""):
        assert spelled_out({"block_size": 8, "speculative_config": none}) == {"block_size": 8}


def test_the_same_value_may_be_given_twice() -> None:
    both = {"speculative_config": LOOKUP, "num_speculative_tokens": 4}
    assert spelled_out(both)["num_speculative_tokens"] == 4


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{method", r"speculative_config is '{method', which is not JSON: "),
        ([4], r"speculative_config is \[4\]; it must be a mapping, such as"),
        ({"num_speculative_tokens": 4}, "neither a method nor a model"),
        ({"method": "ngram"}, "has no num_speculative_tokens; set it to 1 or more"),
        ({**LOOKUP, "prompt_lookup_maxx": 3}, "'prompt_lookup_maxx'; did you mean 'prompt_lookup_"),
        ({**LOOKUP, "zebra": 3}, "unknown name 'zebra'; it may have method, model, num_spec"),
        ({**LOOKUP, "disable_by_batch_size": 3}, "use speculation_max_batch_tokens"),
        ({**LOOKUP, "draft_tensor_parallel_size": 2}, "is 2; only 1 is supported"),
    ],
)
def test_what_is_wrong_with_drafts_is_named(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        spelled_out({"speculative_config": given})


def test_a_value_of_the_wrong_type_is_named() -> None:
    scheduler, _ = sort_settings({"speculative_config": {**LOOKUP, "prompt_lookup_max": "4"}})
    with pytest.raises(ConfigError, match="prompt_lookup_max is '4'; it must be of type int"):
        Config.of(**scheduler)


def test_two_different_values_are_an_error() -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens is 2, and 4 in speculative_co"):
        spelled_out({"speculative_config": LOOKUP, "num_speculative_tokens": 2})


def test_an_engine_drafts_as_it_says_and_counts_drafts_as_vllm_does(tmp_path: Path) -> None:
    prompts = ["to be or not to be", "to be or not"]
    outputs: list[Any] = []
    for given in (None, LOOKUP, {"method": "suffix", "num_speculative_tokens": 4}):
        settings = {"speculative_config": given, "speculation": "fixed"} if given else {}
        settings |= {"load_format": "dummy", "device": "cpu", "max_num_seqs": 2}
        with LLM(str(dummy_model(tmp_path)), **settings) as llm:
            found = [
                llm.generate(prompts, temperature=heat, seed=1, max_tokens=24, progress=False)
                for heat in (0.0, 0.7, 0.7)
            ]
            outputs.append([[one.outputs[0].token_ids for one in each] for each in found])
            report = llm.get_metrics()
        counters = report.counters
        drafted = counters["spec_decode_num_draft_tokens"]
        accepted = counters["spec_decode_num_accepted_tokens"]
        assert (drafted > 0) == (counters["spec_decode_num_drafts"] > 0) == (given is not None)
        assert accepted == sum(report.accepted_at) <= drafted
    assert outputs[0] == outputs[1] == outputs[2]
