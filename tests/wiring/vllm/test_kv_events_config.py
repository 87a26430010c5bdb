"""`kv_events_config` of an engine, and an engine on a model that publishes."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.errors import ConfigError
from paceline.core.settings.features import KVEventsConfig
from paceline.wiring.settings import sort_settings
from paceline.wiring.vllm.configs import kv_events_in
from tests.engine.kv_events.consumer import Consumer
from tests.engine.kv_events.support import endpoints

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
        ("{on", "kv_events_config is '{on', which is no JSON: "),
        ("[1]", r"kv_events_config is '\[1\]'; it must be a mapping, such as {\"enable_kv"),
        ('{"endpont": "tcp://*:1"}', "unknown name 'endpont'; did you mean 'endpoint'?"),
        ('{"zzz": 1}', "unknown name 'zzz'; it may have enable_kv_cache_events, publisher, "),
        ('{"hwm": "many"}', "kv_events_config: hwm is 'many'; it must be of type int"),
    ],
)
def test_what_is_wrong_is_named(given: str, complaint: str) -> None:
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
