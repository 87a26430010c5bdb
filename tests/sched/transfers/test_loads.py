"""Requests that wait for a connector: what they hold, when they go on, and what if it fails."""

from typing import Any

import pytest

from paceline import Scheduler, StepResult
from paceline.core.errors import ConfigError, PluginError
from paceline.core.events import Happened
from tests.property.replica import Replica
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import PROMPT, answer, ask, commit, small, step


def loading(supply: int | None = 3, **settings: Any) -> tuple[Scheduler, ScriptedConnector]:
    scheduler, connector = small(**settings), ScriptedConnector(supply)
    scheduler.connect(connector)
    return scheduler, connector


def state_of(scheduler: Scheduler, name: str) -> str:
    return scheduler.snapshot()["requests"][name]["state"]


def test_a_request_is_parked_while_its_kv_is_loaded_and_others_go_on() -> None:
    scheduler, connector = loading()
    scheduler.submit(ask("a", PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {}
    (load,) = connector.fetched
    assert (load.request.id, load.first, len(load.blocks), len(load.keys)) == ("a", 0, 3, 3)
    assert state_of(scheduler, "a") == "WAITING_FOR_REMOTE_KV"
    assert scheduler.state.cache.pool.free == 16 - 3
    connector.supply = 0
    scheduler.submit(ask("b", 6), 0.0)
    assert step(scheduler)["new"] == ["b"]
    connector.end(load)
    plan = step(scheduler)
    assert plan["new"] == ["a"]
    assert plan["tokens"]["a"] == 1  # the last token of 13 is computed
    assert plan["blocks"]["a"][0][:3] == list(load.blocks)
    stats = scheduler.stats
    assert (stats.external_queries, stats.external_hits, stats.prefix_hits) == (19, 12, 0)


def test_a_full_hit_leaves_the_last_token_to_compute() -> None:
    """Of 12 tokens in 3 blocks, the block of the last token is not asked for."""
    scheduler, connector = loading(supply=99)
    scheduler.submit(ask("a", PROMPT[:12]), 0.0)
    step(scheduler)
    assert len(connector.fetched[0].blocks) == 2
    connector.end_all()
    assert step(scheduler)["tokens"] == {"a": 4}


def test_a_preempted_request_that_loads_returns_as_preempted() -> None:
    scheduler, connector = loading(supply=0)
    scheduler.submit(ask("a", PROMPT, 8), 0.0)
    step(scheduler)
    connector.end_all()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    connector.supply = 3
    step(scheduler)
    assert state_of(scheduler, "a") == "WAITING_FOR_REMOTE_KV"
    connector.end_all()
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["resumed"] == ["a"]
    assert scheduler.stats.resumed_hits == 0
    assert scheduler.stats.external_hits == 12


def test_an_answer_to_come_is_asked_for_again_and_passes_the_request_over() -> None:
    scheduler, connector = loading(supply=None, kv_load_timeout_s=5.0)
    for name in ("a", "b"):
        scheduler.submit(ask(name, PROMPT if name == "a" else 3), 0.0)
    assert step(scheduler)["new"] == ["b"]  # it has no full block to ask for
    assert "answer of its connector" in scheduler.why()["a"]
    assert scheduler.stats.prefix_queries == 3
    step(scheduler, now=1.0)
    assert connector.asked == 2
    assert step(scheduler, now=5.0)["new"] == ["a"]
    assert "did not answer in time" in scheduler.explain("a")


@pytest.mark.parametrize("bad", [0, 2])
def test_what_follows_a_bad_block_is_computed(bad: int) -> None:
    scheduler, connector = loading()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    connector.end(connector.fetched.pop(), bad, "out of luck")
    assert step(scheduler)["tokens"] == {"a": 13 - 4 * bad}
    assert connector.asked == 1
    assert "not loaded: scripted: out of luck; it computes them." in scheduler.explain("a")
    assert scheduler.stats.external_hits == 4 * bad


def test_a_failed_load_ends_the_request_if_the_setting_says_so() -> None:
    scheduler, connector = loading(kv_load_failure_policy="fail")
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.submit(ask("b", PROMPT), 0.0)  # it waits for the same blocks
    step(scheduler)
    assert len(connector.fetched) == 1
    connector.end(connector.fetched.pop(), 1, "lost")
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, answer(plan), 0.0)
    (end,) = outputs.finished
    assert (end.finish.value, end.message) == (
        "error",
        "its KV could not be loaded from scripted: lost",
    )
    assert [load.first for load in connector.fetched] == [1]  # b keeps the good block
    scheduler.check()


def test_a_slow_load_is_given_up_and_its_blocks_stay_fenced() -> None:
    scheduler, connector = loading(kv_load_timeout_s=2.0)
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    plan = step(scheduler, now=2.0)
    (load,) = connector.fetched
    assert plan["tokens"] == {"a": 13}
    assert not {*load.blocks} & {*plan["blocks"]["a"][0]}
    assert "took too long" in scheduler.explain("a")
    connector.end(load)  # late, and right all the same
    step(scheduler, now=3.0)
    assert scheduler.state.cache.pool.free == 16 - 4


def test_an_abort_while_loading_keeps_the_blocks_until_the_transfer_ends() -> None:
    scheduler, connector = loading()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    assert scheduler.abort("a", 0.0)
    assert not scheduler.abort("a", 0.0)
    step(scheduler)
    assert scheduler.state.cache.pool.free == 16 - 3
    connector.end_all()
    step(scheduler)
    assert scheduler.state.cache.pool.free == 16


def test_requests_with_the_same_prefix_share_a_load() -> None:
    scheduler, connector = loading()
    for name in ("a", "b", "c"):
        scheduler.submit(ask(name, [*PROMPT, len(name)]), 0.0)
    step(scheduler)
    assert len(connector.fetched) == 1
    assert [*scheduler.snapshot()["parked"].values()] == ["remote_kv"] * 3
    connector.end_all()
    assert step(scheduler)["new"] == ["a", "b", "c"]
    assert scheduler.stats.external_hits == 12
    assert scheduler.stats.prefix_hits == 24


def test_a_load_may_begin_in_front_of_another_one() -> None:
    """A row fails, and with it the blocks that a load under way follows."""
    scheduler, connector = loading(supply=0)
    scheduler.submit(ask("a", PROMPT[:8]), 0.0)
    first = scheduler.plan(0.0)
    connector.supply = 3
    scheduler.submit(ask("b", PROMPT), 0.0)
    second = scheduler.plan(0.0)
    scheduler.commit(first, StepResult.of(first, {}, failed={"a": "out of range"}), 0.0)
    scheduler.submit(ask("c", PROMPT), 0.0)
    commit(scheduler, second)
    step(scheduler)
    assert [(load.request.id, load.first) for load in connector.fetched] == [("b", 2), ("c", 0)]
    for load in connector.fetched:
        connector.end(load)
    assert step(scheduler)["tokens"] == {"b": 1, "c": 1}


def test_a_load_waits_for_the_steps_in_flight() -> None:
    """A step that was planned before a sequence left may still write to its blocks."""
    scheduler, connector = loading(supply=0)
    scheduler.submit(ask("a", 4), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    connector.supply = 3
    scheduler.submit(ask("b", PROMPT), 0.0)
    assert scheduler.plan(0.0).empty
    assert not connector.fetched
    commit(scheduler, first)
    assert not connector.fetched
    commit(scheduler, second)
    assert [load.request.id for load in connector.fetched] == ["b"]


def test_loads_leave_blocks_for_all_that_they_will_need() -> None:
    """Each of two could load, but not both go on: the second waits."""
    scheduler, connector = loading(num_blocks=10, reserve_full_prompt=False)
    long = [*PROMPT, *range(200, 210)]  # 23 tokens: 6 blocks, of which 3 are loaded
    for name in ("a", "b"):
        scheduler.submit(ask(name, long if name == "a" else long[::-1]), 0.0)
    step(scheduler)
    assert [load.request.id for load in connector.fetched] == ["a"]
    assert scheduler.components.loads.reserved == 3
    scheduler.submit(ask("c", 8), 0.0)
    connector.end_all()
    assert step(scheduler)["new"] == ["a"]


def test_loaded_blocks_are_held_by_no_request() -> None:
    """Two requests load all blocks of the device, and a third has to run before them: it can,
    because a load that has ended holds nothing."""
    scheduler, connector = loading(num_blocks=8, max_model_len=33, policy="priority")
    for name in ("a", "b"):
        scheduler.submit(ask(name, 13, priority=5), 0.0)
    step(scheduler)
    assert len(connector.fetched) == 2
    scheduler.submit(ask("c", 31, priority=1), 0.0)  # it needs all eight blocks
    connector.supply = 0
    assert step(scheduler)["new"] == []
    connector.end_all()
    assert step(scheduler)["new"] == ["c"]
    connector.supply = 3
    for _ in range(40):
        connector.end_all()
        step(scheduler)
    assert scheduler.idle


def test_blocks_that_were_loaded_behind_blocks_of_a_lost_step_are_not_kept() -> None:
    """A consumer of events would get them before their parent."""
    scheduler, connector = loading(supply=0, enable_kv_cache_events=True)
    scheduler.submit(ask("a", PROMPT[:9]), 0.0)
    lost = scheduler.plan(0.0)
    connector.supply = 3
    scheduler.submit(ask("b", PROMPT), 0.0)
    scheduler.plan(0.0)
    connector.supply = 0
    scheduler.retry(lost, 0.0)
    plan = scheduler.plan(0.0)  # the load behind the two blocks of `a` begins
    assert [load.first for load in connector.fetched] == [2]
    connector.end_all()
    scheduler.plan(0.0)
    commit(scheduler, plan)
    replica = Replica(block_size=4)
    replica.apply(scheduler.cache_events())
    assert len(replica.keys) == 2


def test_a_request_whose_loaded_blocks_were_evicted_loads_once_more_and_computes_then() -> None:
    scheduler, connector = loading(num_blocks=8, max_model_len=33, policy="priority")
    scheduler.submit(ask("a", PROMPT, priority=5), 0.0)
    for number in range(2):
        step(scheduler)
        scheduler.submit(ask(f"c{number}", 31, 1, priority=1), 0.0)
        connector.end_all()
        connector.supply = 0
        assert step(scheduler)["new"] == [f"c{number}"]  # it takes all blocks
        connector.end_all()
        connector.supply = 3
    assert step(scheduler)["tokens"] == {"a": 13}
    fetched = [one for one in _life(scheduler, "a") if one is Happened.FETCHED]
    assert len(fetched) == 2


def _life(scheduler: Scheduler, name: str) -> list[Happened]:
    return [moment.happened for moment in scheduler.view.life(name)]


def test_a_connector_needs_prefix_caching_and_right_answers() -> None:
    with pytest.raises(ConfigError, match="kv_connector needs enable_prefix_caching"):
        loading(enable_prefix_caching=False)
    scheduler, connector = loading()
    connector.offer = lambda request, keys, have: 99  # type: ignore[method-assign]
    scheduler.submit(ask("a", PROMPT), 0.0)
    with pytest.raises(PluginError, match="kv_connector 'scripted' offers 99 of 3 blocks"):
        scheduler.plan(0.0)


def test_a_producer_loads_nothing() -> None:
    scheduler, connector = small(), ScriptedConnector(3, kv_role="kv_producer")
    scheduler.connect(connector)
    scheduler.submit(ask("a", PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13}
    assert not connector.asked
    assert scheduler.stats.external_queries == 0


def test_explain_says_what_was_loaded_from_where_and_how_long_it_took() -> None:
    scheduler, connector = loading()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    connector.end_all()
    step(scheduler, now=0.25)
    told = scheduler.explain("a")
    assert "parked for remote_kv." in told
    assert "12 tokens loaded from scripted in 0.250 s." in told


def test_a_connector_hears_that_its_blocks_are_not_needed() -> None:
    """Another engine may keep blocks for a request that finds all of them here."""
    scheduler, connector = loading(supply=0)
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    before = connector.asked
    scheduler.submit(ask("b", PROMPT), 0.0)
    scheduler.submit(ask("c", PROMPT, kv_transfer_params={"do_remote_prefill": True}), 0.0)
    assert step(scheduler)["new"] == ["b", "c"]
    assert connector.asked == before + 1
