"""First come, first served; and the choice of a victim, which policies share."""

from typing import Any

import pytest

from paceline import Scheduler
from tests.sched.support import ask, finish_all, sequence, small, step


def admitted(scheduler: Scheduler, steps: int) -> list[str]:
    """Who is admitted, in order, over some steps."""
    order: list[str] = []
    for _ in range(steps):
        told = step(scheduler)
        order += [*told["new"], *told["resumed"]]
    return order


def slot(scheduler: Scheduler, name: str) -> int:
    return sequence(scheduler, name).slot


# -- order ------------------------------------------------------------------


def test_the_order_is_that_of_submission_whatever_else_is_said() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("long", 30, 1, priority=9, deadline=99.0), now=0.0)
    scheduler.submit(ask("short", 2, 1, priority=0, deadline=0.1), now=0.0)
    scheduler.submit(ask("early", 2, 1, arrival=-100.0), now=0.0)
    assert admitted(scheduler, 3) == ["long", "short", "early"]


def test_one_that_does_not_fit_holds_up_those_behind_it() -> None:
    scheduler = small()
    scheduler.submit(ask("first", 40, 8), now=0.0)
    scheduler.submit(ask("large", 40, 8), now=0.0)
    scheduler.submit(ask("small", 2, 2), now=0.0)
    step(scheduler)
    step(scheduler)
    assert scheduler.snapshot()["waiting"] == ["large", "small"]


def test_a_parked_one_holds_up_nobody_and_comes_back_to_its_place() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "abcd":
        scheduler.submit(ask(name, 2, 1), now=0.0)
    scheduler.park("a", "grammar", now=0.0)
    scheduler.park("b", "grammar", now=0.0)
    assert admitted(scheduler, 1) == ["c"]
    scheduler.wake("b", now=0.0)
    scheduler.wake("a", now=0.0)
    assert admitted(scheduler, 3) == ["a", "b", "d"]


# -- who gives way ----------------------------------------------------------


def crowded(**settings: Any) -> Scheduler:
    """Three residents that fill the pool, of which each needs another block in the next step."""
    scheduler = small(max_num_batched_tokens=64, **settings)
    for name, prompt in (("a", 20), ("b", 20), ("c", 20)):
        scheduler.submit(ask(name, prompt, 20), now=0.0)
    step(scheduler)
    return scheduler


def test_the_newest_gives_way_and_comes_back_before_all_who_wait() -> None:
    scheduler = crowded()
    scheduler.submit(ask("d", 2, 2), now=0.0)
    told = step(scheduler)
    assert told["preempted"] == ["c"]
    assert told["new"] == []  # nobody is admitted in a step that preempted
    assert scheduler.snapshot()["waiting"] == ["c", "d"]


def test_of_several_preempted_ones_the_oldest_comes_back_first() -> None:
    scheduler = small(max_num_batched_tokens=64, num_blocks=15, max_model_len=60)
    for name, prompt in (("a", 20), ("b", 16), ("c", 16)):
        scheduler.submit(ask(name, prompt, 36), now=0.0)
    gone: list[str] = []
    while len(gone) < 2:
        gone += step(scheduler)["preempted"]
    assert gone == ["c", "b"]
    assert scheduler.snapshot()["waiting"] == ["b", "c"]


def test_one_that_waits_never_preempts() -> None:
    scheduler = small(max_num_seqs=1, preempt_on_arrival=True)
    scheduler.submit(ask("running", 2, 20, priority=9), now=0.0)
    step(scheduler)
    scheduler.submit(ask("waiting", 2, 2, priority=0), now=0.0)
    for _ in range(10):
        assert step(scheduler)["preempted"] == []


# -- the cheapest -----------------------------------------------------------


def test_the_cheapest_is_the_one_with_the_least_to_compute_again() -> None:
    scheduler = small(victim="cheapest", num_blocks=14, max_num_batched_tokens=64)
    for name, prompt in (("long", 20), ("short", 12), ("newest", 20)):
        scheduler.submit(ask(name, prompt, 20), now=0.0)
    step(scheduler)
    assert step(scheduler)["preempted"] == ["short"]


def test_the_newest_of_the_cheapest_goes() -> None:
    scheduler = crowded(victim="cheapest")
    assert step(scheduler)["preempted"] == ["c"]


def test_shared_blocks_are_kept_and_do_not_count_as_lost() -> None:
    scheduler = small(victim="cheapest", num_blocks=17, max_num_batched_tokens=64)
    common = range(16)
    scheduler.submit(ask("one", [*common, 91, 92, 93, 94], 20), now=0.0)
    scheduler.submit(ask("two", [*common, 81, 82, 83, 84], 20), now=0.0)
    scheduler.submit(ask("lonely", 16, 20), now=0.0)
    scheduler.submit(ask("newest", 16, 20), now=0.0)
    step(scheduler)
    losses = {
        name: scheduler.state.loss(slot(scheduler, name))
        for name in ("one", "two", "lonely", "newest")
    }
    assert losses["one"] == losses["two"] == 20 - 16  # computed, less four blocks that both hold
    assert losses["lonely"] == losses["newest"] == 16
    assert step(scheduler)["preempted"] == ["two"]


def test_a_block_that_the_other_holder_gave_up_is_lost_again() -> None:
    scheduler = small(victim="cheapest")
    common = range(16)
    scheduler.submit(ask("one", [*common, 91], 8), now=0.0)
    scheduler.submit(ask("two", [*common, 81], 8), now=0.0)
    step(scheduler)
    assert scheduler.state.loss(slot(scheduler, "one")) == 17 - 16
    scheduler.abort("two", now=0.0)
    assert scheduler.state.loss(slot(scheduler, "one")) == 17


def test_what_was_not_computed_yet_is_not_lost() -> None:
    """A long prompt that has only begun is cheap to give up."""
    scheduler = small(victim="cheapest", long_prefill_token_threshold=2)
    prompt = range(20)
    scheduler.submit(ask("warm", prompt, 1), now=0.0)
    finish_all(scheduler)
    scheduler.submit(ask("begun", 36, 4), now=0.0)
    scheduler.submit(ask("mostly cached", [*prompt, 7], 20), now=0.0)
    step(scheduler)
    begun, cached = slot(scheduler, "begun"), slot(scheduler, "mostly cached")
    assert scheduler.state.loss(begun) == 2
    assert scheduler.state.loss(cached) >= 20
    gone: list[str] = []
    while not gone:
        gone = step(scheduler)["preempted"]
    assert gone == ["begun"]


@pytest.mark.parametrize("victim", ["newest", "cheapest"])
def test_one_alone_is_never_preempted(victim: str) -> None:
    scheduler = small(victim=victim)
    scheduler.submit(ask("alone", 10, 54), now=0.0)
    finish_all(scheduler)
    assert scheduler.stats.preemptions == 0
