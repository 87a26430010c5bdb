"""One of several sequences of a request ends alone, wherever it is."""

from typing import Any

import pytest

from paceline import Request, RequestError, Scheduler
from paceline.testing.reference import reference
from tests.sched import constant_steps as steps
from tests.sched.support import (
    VOCAB,
    Pipeline,
    ask,
    commit,
    finish_all,
    preempt,
    small,
    state,
    step,
)

LENGTH = 64
ASKED = ask("a", 9, max_tokens=8, n=3, seed=4)


def expected(request: Request, child: int) -> list[int]:
    return reference(request.child(child), VOCAB, LENGTH)[0]


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", ["fcfs", "deadline", "fair"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("child", [0, 1, 2])
@pytest.mark.parametrize("turns", range(9))
def test_the_others_get_what_they_would_have_got(
    turns: int, child: int, depth: int, policy: str
) -> None:
    scheduler = small(policy=policy, refuse_late=True, max_num_batched_tokens=8)
    scheduler.submit(ASKED, 0.0)
    pipeline = Pipeline(scheduler, depth)
    for _ in range(turns):
        if len(pipeline.flight) == depth:
            pipeline.land()
        pipeline.launch()
    assert scheduler.abort("a", 0.0, child)
    scheduler.check()
    assert not scheduler.abort("a", 0.0, child)
    pipeline.run()
    for other in {0, 1, 2} - {child}:
        assert pipeline.got[f"{other}_a"] == expected(ASKED, other)
    ended = pipeline.got.get(f"{child}_a", [])
    assert ended == expected(ASKED, child)[: len(ended)]
    assert f"{child}_a" not in pipeline.ends  # whoever asked for it knows
    assert pipeline.ends["a"] == ["length"]
    assert scheduler.usage == 0


def test_its_blocks_and_its_slot_are_free_at_once() -> None:
    scheduler = small()
    scheduler.submit(ASKED, 0.0)
    step(scheduler)
    step(scheduler)
    before = scheduler.snapshot()["free_blocks"]
    assert scheduler.abort("a", 0.0, 2)
    assert scheduler.snapshot()["free_blocks"] > before
    assert scheduler.state.table.vacant == 2
    assert set(state(scheduler, "a")["children"]) == {"0", "1"}


@pytest.mark.parametrize("place", ["waiting", "parked", "preempted", "swapped"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_family_that_has_no_slots_ends_with_its_last_child(
    place: str, order: tuple[int, ...]
) -> None:
    swaps = {"preemption_mode": "swap", "swap_space": 16} if place == "swapped" else {}
    scheduler = small(**swaps)
    scheduler.submit(ASKED, 0.0, parked="grammar" if place == "parked" else "")
    if place in ("preempted", "swapped"):
        for _ in range(3):
            step(scheduler)
        preempt(scheduler, "a")
    if place == "swapped":
        step(scheduler)
    for child in order:
        assert scheduler.unfinished == 1
        assert scheduler.abort("a", 0.0, child)
        scheduler.check()
    assert scheduler.unfinished == 0
    assert commit(scheduler, scheduler.plan(0.0)) == {"a": {"tokens": [], "finish": "abort"}}
    assert scheduler.idle
    host = scheduler.state.cache.host
    assert host.free == host.size


def test_an_heir_stands_where_the_first_child_stood() -> None:
    scheduler = small(max_num_seqs=3)
    for name in "xab":
        scheduler.submit(ask(name, 5, n=2 if name == "a" else 1), 0.0)
    assert scheduler.abort("a", 0.0, 0)
    assert scheduler.snapshot()["waiting"] == ["x", "a", "b"]
    assert scheduler.park("a", "grammar", 0.0)
    assert scheduler.snapshot()["parked"] == {"a": "grammar"}
    assert scheduler.wake("a", 0.0)
    got = finish_all(scheduler)
    assert len(got["1_a"]) == 4
    assert "0_a" not in got


def test_the_request_ends_as_the_first_that_was_not_ended() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, n=2, max_tokens=3, stop_token_ids=(7,)), 0.0)
    step(scheduler)
    told = commit(scheduler, scheduler.plan(0.0), **{"1_a": [7]})
    assert told["1_a"]["finish"] == "stop"
    assert scheduler.abort("a", 0.0, 0)
    assert commit(scheduler, scheduler.plan(0.0))["a"]["finish"] == "stop"


@pytest.mark.parametrize("family", [{"n": 2, "best_of": 3}, {"beam_width": 2}])
def test_samples_that_are_not_told_one_by_one_refuse(family: dict[str, Any]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, **family), 0.0)
    with pytest.raises(RequestError, match="'a' returns only the best"):
        scheduler.abort("a", 0.0, 1)
    assert scheduler.abort("a", 0.0)


def test_children_that_are_not_here_are_as_requests_that_are_not_here() -> None:
    scheduler: Scheduler = small()
    scheduler.submit(ask("a", 5, n=2), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    for name, child in (("a", 2), ("a", -1), ("b", 0), ("nobody", 0)):
        assert not scheduler.abort(name, 0.0, child)
    assert scheduler.unfinished == 2


def test_a_name_is_free_when_its_end_has_been_told() -> None:
    scheduler = small()
    asked = ask("a", 5, max_tokens=4, n=2)
    scheduler.submit(asked, 0.0)
    for child in (0, 1):
        assert scheduler.abort("a", 0.0, child)
    with pytest.raises(RequestError, match="is in use"):
        scheduler.submit(asked, 0.0)
    step(scheduler)
    scheduler.submit(asked, 0.0)
    assert finish_all(scheduler)


def test_what_was_found_in_the_cache_is_known_of_every_child() -> None:
    scheduler = small()
    scheduler.submit(ask("before", list(range(17)), max_tokens=2), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("a", list(range(17)), max_tokens=6, n=2), 0.0)
    for _ in range(2):
        step(scheduler)
    found = scheduler.state.live["a"].cached
    assert found == 16
    assert scheduler.abort("a", 0.0, 0)
    assert scheduler.state.live["a"].cached == found


def test_nobody_waits_behind_a_child_of_its_own_that_has_ended() -> None:
    scheduler = small(num_blocks=8, max_num_seqs=4)
    scheduler.submit(ask("first", 20, max_tokens=8), 0.0)
    step(scheduler)
    scheduler.submit(ask("a", 9, max_tokens=4, n=2), 0.0)
    scheduler.plan(1.0)
    assert scheduler.abort("a", 2.0, 0)
    scheduler.plan(3.0)
    told = scheduler.explain("a")
    assert "waited" in told
    assert "behind 'a'" not in told


def test_the_last_child_of_a_resident_family_runs_past_the_fork() -> None:
    scheduler = steps.make(max_num_batched_tokens=4)
    scheduler.submit(steps.request("f", list(range(10)), max_tokens=3, n=2), 0.0)
    steps.step(scheduler)  # four of nine shared positions: resident, and not forked
    assert scheduler.abort("f", 0.0, child=1)
    for _ in range(20):
        steps.step(scheduler)
    assert scheduler.idle


def test_a_family_whose_first_child_ended_in_the_prompt_waits_in_front_of_its_equals() -> None:
    scheduler = small(policy="priority", max_num_seqs=3, max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, n=3), 0.0)
    step(scheduler)
    scheduler.submit(ask("other", 3, arrival=-5.0), 0.0)
    scheduler.abort("a", 0.0, child=0)
    assert scheduler.snapshot()["waiting"] == ["a", "other"]
