"""Hits in host memory: a waiting request continues behind content that is loaded for it."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline import Scheduler
from paceline.core.events import BlockStored
from paceline.core.plan import Failed
from paceline.testing.reference import reference
from tests.sched.support import (
    VOCAB,
    Pipeline,
    answer,
    ask,
    commit,
    findable,
    finish_all,
    gate,
    preempt,
    small,
    state,
    step,
)

TEXT = range(700, 740)


def stocked(**settings: Any) -> Scheduler:
    """An idle scheduler whose host has 12 tokens of TEXT, and whose device has none."""
    roomy = {"num_blocks": 6, "max_num_seqs": 2, "preemption_mode": "swap", "swap_space": 16}
    scheduler = small(**roomy | settings)
    scheduler.submit(ask("old", 8, max_tokens=9), 0.0)
    scheduler.submit(ask("victim", TEXT[:12], max_tokens=9), 0.0)
    while not scheduler.snapshot()["swapped"]:
        step(scheduler)
    scheduler.abort("victim", 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("large", 22, max_tokens=2), 0.0)
    finish_all(scheduler)
    assert scheduler.snapshot()["free_blocks"] == 6
    return scheduler


def admitted(scheduler: Scheduler, tokens: int = 16, **more: Any) -> dict[str, Any]:
    """Submit a request that begins like TEXT, and run the step that admits it."""
    scheduler.submit(ask("new", TEXT[:tokens], **more), 0.0)
    return step(scheduler)


# -- what is found and what moves --------------------------------------------


def test_a_waiting_request_finds_what_another_left_on_the_host() -> None:
    scheduler = stocked()
    plan = admitted(scheduler)
    assert plan["tokens"] == {"new": 4}
    assert [host for host, _ in plan["swap_in"]] == [0, 1, 2]
    assert [device for _, device in plan["swap_in"]] == plan["blocks"]["new"][0][:3]
    assert state(scheduler, "new")["cached"] == 12


def test_what_a_swapped_request_keeps_there_is_found_too() -> None:
    scheduler = small(num_blocks=6, max_num_seqs=3, preemption_mode="swap", swap_space=16)
    scheduler.submit(ask("old", 8, max_tokens=16), 0.0)
    scheduler.submit(ask("victim", TEXT[:12], max_tokens=9), 0.0)
    while not scheduler.snapshot()["swapped"]:
        step(scheduler)
    cache = scheduler.state.cache
    cache.pool.drop(cache.pool.take(cache.pool.free))  # nothing of it is left on the device
    step(scheduler)
    free = scheduler.snapshot()["host_free_blocks"]
    assert findable(scheduler, TEXT[:12]) == 12
    assert scheduler.snapshot()["host_free_blocks"] == free


def test_the_device_part_is_not_loaded() -> None:
    scheduler = stocked()
    scheduler.submit(ask("short", TEXT[:5], max_tokens=1), 0.0)  # loads one block
    finish_all(scheduler)
    plan = admitted(scheduler)
    assert [host for host, _ in plan["swap_in"]] == [1, 2]
    assert plan["tokens"] == {"new": 4}


def test_two_that_find_the_same_load_it_once() -> None:
    scheduler = stocked()
    for name in ("one", "two"):
        scheduler.submit(ask(name, TEXT[:13], max_tokens=1), 0.0)
    plan = step(scheduler)
    assert plan["new"] == ["one", "two"]
    assert plan["tokens"] == {"one": 1, "two": 1}
    assert len(plan["swap_in"]) == 3
    stats = scheduler.stats
    assert (stats.external_hits, stats.prefix_hits) == (12, 12)


@pytest.mark.parametrize(
    "settings", [{"enable_prefix_caching": False}, {"preemption_mode": "recompute"}]
)
def test_without_prefix_caching_or_swapping_nothing_is_loaded(settings: dict[str, Any]) -> None:
    scheduler = small(**{"preemption_mode": "swap", "swap_space": 16} | settings)
    for name in ("one", "two"):
        scheduler.submit(ask(name, TEXT[:16], max_tokens=2), 0.0)
        while not scheduler.idle:
            assert not step(scheduler)["swap_in"]
    assert scheduler.stats.external_hits == 0


def test_a_reset_of_the_cache_forgets_the_host() -> None:
    scheduler = stocked()
    assert scheduler.reset_prefix_cache()
    assert not admitted(scheduler)["swap_in"]


# -- gates -------------------------------------------------------------------


def test_the_host_part_needs_blocks_on_the_device() -> None:
    scheduler = stocked(max_num_batched_tokens=4)
    scheduler.submit(ask("resident", 12, max_tokens=5), 0.0)
    step(scheduler)
    step(scheduler)
    step(scheduler)
    plan = admitted(scheduler)  # 3 blocks to load into and one to compute, of 2 that are free
    assert not plan["new"]
    assert gate(scheduler) == ("blocks", "new", 1 + 1)


def test_a_request_that_waits_for_blocks_counts_nothing() -> None:
    scheduler = stocked(max_num_batched_tokens=4)
    scheduler.submit(ask("resident", 12, max_tokens=5), 0.0)
    for _ in range(3):
        step(scheduler)
    before = scheduler.stats.to_dict()
    admitted(scheduler)
    after = scheduler.stats.to_dict()
    for name in (
        "prefix_queries",
        "prefix_hits",
        "external_queries",
        "external_hits",
        "swapped_in_blocks",
    ):
        assert before[name] == after[name]
    assert state(scheduler, "new")["cached"] == 0


# -- counts, events, sentences -----------------------------------------------


def test_host_hits_are_counted_apart_from_device_hits() -> None:
    scheduler = stocked()
    before = scheduler.stats.to_dict()
    admitted(scheduler)
    after = scheduler.stats.to_dict()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert (grown["prefix_queries"], grown.get("prefix_hits", 0)) == (16, 0)
    assert (grown["external_queries"], grown["external_hits"]) == (16, 12)
    assert grown["swapped_in_blocks"] == 3


def test_a_life_tells_what_was_loaded() -> None:
    scheduler = stocked()
    admitted(scheduler)
    told = scheduler.explain("new")
    step_number = scheduler.state.step
    assert f"admitted in step {step_number}; 12 tokens came from the prefix cache." in told
    assert f"12 tokens of these are loaded from host memory in step {step_number}." in told


def test_routers_hear_that_loaded_blocks_are_on_the_device() -> None:
    scheduler = stocked(enable_kv_cache_events=True)
    scheduler.cache_events()
    admitted(scheduler, tokens=13)
    stored = [one for one in scheduler.cache_events() if isinstance(one, BlockStored)]
    assert [one.tokens for one in stored] == [tuple(TEXT[i : i + 4]) for i in (0, 4, 8)]


# -- trouble while the copy is in flight --------------------------------------


def test_an_abort_while_the_copy_is_in_flight_frees_everything_once() -> None:
    scheduler = stocked()
    scheduler.submit(ask("new", TEXT[:16]), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("new", 0.0)
    scheduler.check()
    now = scheduler.snapshot()
    assert (now["free_blocks"], now["host_free_blocks"]) == (3, 13)  # both ends of the copies
    commit(scheduler, plan)
    now = scheduler.snapshot()
    assert (now["free_blocks"], now["host_free_blocks"]) == (6, 16)
    assert findable(scheduler, TEXT[:12]) == 12
    scheduler.submit(ask("again", TEXT[:16]), 0.0)
    assert not step(scheduler)["swap_in"]  # the copy was made, and is found


def test_a_preemption_while_the_copy_is_in_flight_loses_nothing() -> None:
    scheduler = stocked()
    scheduler.submit(ask("new", TEXT[:16]), 0.0)
    plan = scheduler.plan(0.0)
    preempt(scheduler, "new", may_swap=False)
    scheduler.check()
    commit(scheduler, plan)
    again = step(scheduler)
    assert (again["resumed"], again["tokens"], again["swap_in"]) == (["new"], {"new": 4}, [])
    assert len(finish_all(scheduler)["new"]) == 3
    assert scheduler.snapshot()["host_free_blocks"] == 16


def test_one_that_is_swapped_out_while_the_copy_is_in_flight_returns() -> None:
    scheduler = stocked()
    scheduler.submit(ask("new", TEXT[:16]), 0.0)
    plan = scheduler.plan(0.0)
    preempt(scheduler, "new")
    scheduler.check()
    assert scheduler.snapshot()["swapped"] == ["new"]
    commit(scheduler, plan)
    assert len(finish_all(scheduler)["new"]) == 4
    assert scheduler.snapshot()["host_free_blocks"] == 16


@pytest.mark.parametrize("retried", [False, True])
def test_content_that_failed_to_arrive_is_loaded_again(retried: bool) -> None:
    scheduler = stocked()
    scheduler.submit(ask("new", TEXT[:16]), 0.0)
    plan = scheduler.plan(0.0)
    if retried:
        scheduler.retry(plan, 0.0)
    else:
        scheduler.fail(plan, 0.0)
        scheduler.submit(ask("new", TEXT[:16]), 0.0)
    scheduler.check()
    again = step(scheduler)
    assert [host for host, _ in again["swap_in"]] == [0, 1, 2]
    assert again["tokens"] == {"new": 4}


def test_a_row_that_fails_is_not_found_on_the_host_again() -> None:
    """What it loaded is doubtful: it failed on it."""
    scheduler = stocked()
    scheduler.submit(ask("new", TEXT[:16]), 0.0)
    plan = scheduler.plan(0.0)
    failed = replace(answer(plan), count=np.zeros(1, np.int32), failed=(Failed(0, "no numbers"),))
    scheduler.commit(plan, failed, 0.0)
    scheduler.check()
    assert findable(scheduler, TEXT[:12]) == 0


# -- other ways of scheduling ---------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
@pytest.mark.parametrize("n", [1, 2])
def test_tokens_are_those_of_the_reference(depth: int, discipline: str, n: int) -> None:
    settings: dict[str, Any] = {"preemption_mode": "swap", "swap_space": 48}
    scheduler = small(num_blocks=16, max_num_seqs=6, discipline=discipline, **settings)
    pipeline, random = Pipeline(scheduler, depth), Random(1)
    beginnings = [[random.randrange(VOCAB) for _ in range(18)] for _ in range(4)]
    asked = [
        ask(f"r{number}", [*random.choice(beginnings), number], max_tokens=16, n=n, seed=3)
        for number in range(12)
    ]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline.run()
    assert scheduler.stats.external_hits
    for one in asked:
        for child in range(n):
            label = one.id if n == 1 else f"{child}_{one.id}"
            expected, _ = reference(replace(one, seed=3 + child, n=1), VOCAB, 64)
            assert pipeline.got[label] == expected
