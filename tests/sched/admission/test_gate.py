"""A list of gates: the first that is shut stops the queue, or passes one request over."""

from collections.abc import Iterator

import pytest

from paceline import Scheduler
from paceline.core.settings.config import Config
from paceline.sched.admission.admission import MOST_OVERTAKEN, MOST_PASSED_OVER
from paceline.sched.admission.gates import FreeBlocks, Gates, VacantSlots
from paceline.sched.state import SchedulerState
from tests.sched.admission.support import (
    BARRED,
    ONE_ADAPTER,
    Barred,
    NeverShut,
    Newcomer,
    OneAdapter,
    room,
)
from tests.sched.support import SMALL, ask, commit, finish_all, gate, small, step


@pytest.fixture(autouse=True)
def nobody_is_barred() -> Iterator[None]:
    Barred.passes, Barred.stops, OneAdapter.asked = set(), set(), 0
    yield
    Barred.passes, Barred.stops = set(), set()


def mixed(names: str, **settings: object) -> Scheduler:
    """Requests with the adapter that they are named after, in this order."""
    scheduler = small(discipline=ONE_ADAPTER, **settings)
    for number, adapter in enumerate(names):
        scheduler.submit(ask(f"{adapter}{number}", 3, max_tokens=4, adapter=adapter), 0.0)
    return scheduler


def waiting(scheduler: Scheduler) -> list[str]:
    ids: list[str] = scheduler.snapshot()["waiting"]
    return ids


# -- the list -----------------------------------------------------------------


def test_the_first_gate_that_is_shut_answers() -> None:
    config = Config.of(**SMALL)
    gates = Gates((VacantSlots, NeverShut, FreeBlocks), config, SchedulerState(config))
    assert len(gates) == 2
    assert gates.shut(Newcomer(), room()) is None
    both = gates.shut(Newcomer(size=2, blocks=9), room(vacant=1))
    assert both is not None
    assert both.reason == "seqs"
    last = gates.shut(Newcomer(blocks=9), room())
    assert last is not None
    assert last.reason == "blocks"


@pytest.mark.parametrize("discipline", BARRED)
def test_a_gate_of_ones_own_stops_the_queue(discipline: str) -> None:
    Barred.stops = {"b"}
    scheduler = small(discipline=discipline)
    for name in "abc":
        scheduler.submit(ask(name, 3), 0.0)
    assert step(scheduler)["new"] == ["a"]
    assert gate(scheduler) == ("a permit", "b", 0)
    assert scheduler.why()["c"] == "behind 'b', which waits for a permit"
    Barred.stops = set()
    assert step(scheduler)["new"] == ["b", "c"]
    finish_all(scheduler)


# -- passing over -------------------------------------------------------------


@pytest.mark.parametrize("discipline", BARRED)
def test_a_request_that_is_passed_over_keeps_its_place(discipline: str) -> None:
    Barred.passes = {"b", "d"}
    scheduler = small(discipline=discipline, max_num_seqs=8)
    for name in "abcde":
        scheduler.submit(ask(name, 3), 0.0)
    assert step(scheduler)["new"] == ["a", "c", "e"]
    assert waiting(scheduler) == ["b", "d"]
    scheduler.submit(ask("f", 3), 0.0)
    Barred.passes = {"b"}
    assert step(scheduler)["new"] == ["d", "f"]
    Barred.passes = set()
    assert step(scheduler)["new"] == ["b"]
    finish_all(scheduler)
    scheduler.check()


def test_those_with_the_same_adapter_run_together_and_the_others_follow_in_order() -> None:
    scheduler = mixed("xyxyx")
    assert step(scheduler)["new"] == ["x0", "x2", "x4"]
    assert waiting(scheduler) == ["y1", "y3"]
    new = [name for _ in range(5) for name in step(scheduler)["new"]]
    assert new == ["y1", "y3"]
    finish_all(scheduler)


def test_a_request_behind_one_that_stops_is_not_considered() -> None:
    scheduler = mixed("xyxx", max_num_seqs=2)
    assert step(scheduler)["new"] == ["x0", "x2"]
    assert gate(scheduler) == ("seqs", "x3", 1)
    assert scheduler.why()["y1"] == "for its adapter"


def test_a_request_is_overtaken_so_often_and_no_more() -> None:
    """A stream of requests would keep the adapter of "y" out for ever."""
    scheduler = mixed("xy", max_num_seqs=4, num_blocks=64, max_num_queued_reqs=10_000)
    overtakers, steps = 0, 0
    while "y1" in waiting(scheduler):
        steps += 1
        scheduler.submit(ask(f"more{steps}", 3, max_tokens=3, adapter="x"), 0.0)
        overtakers += sum(name.startswith("more") for name in step(scheduler)["new"])
        assert overtakers <= MOST_OVERTAKEN
        scheduler.check()
    assert overtakers == MOST_OVERTAKEN
    assert steps < 2 * MOST_OVERTAKEN  # it got in when the last of them had ended
    assert scheduler.snapshot()["running"] == ["y1"]


def test_an_admission_takes_the_count_of_the_overtaken_back() -> None:
    scheduler = mixed("xyx")
    step(scheduler)
    queue, one = scheduler.state.queue, scheduler.state.live["y1"]
    assert queue.overtaken(one) == 1
    finish_all(scheduler)
    assert queue.overtaken(one) == 0
    queue.check()


def test_a_request_that_has_waited_long_enough_stops_the_queue() -> None:
    scheduler = mixed("xy", policy="priority", ageing_s=5.0)
    step(scheduler)
    scheduler.submit(ask("x2", 3, adapter="x"), 1.0)
    assert step(scheduler, now=1.0)["new"] == ["x2"]
    scheduler.submit(ask("x3", 3, adapter="x"), 6.0)
    assert step(scheduler, now=6.0)["new"] == []
    assert gate(scheduler) == ("its adapter", "y1", 0)
    assert scheduler.gate is not None
    assert scheduler.gate.aged


def test_a_step_looks_past_so_many_and_no_more() -> None:
    scheduler = mixed("x" + "y" * 200, max_num_queued_reqs=10_000)
    scheduler.submit(ask("last", 3, adapter="x"), 0.0)
    step(scheduler)
    OneAdapter.asked = 0
    step(scheduler)
    assert OneAdapter.asked == MOST_PASSED_OVER + 1
    assert gate(scheduler) == ("its adapter", f"y{MOST_PASSED_OVER + 1}", 0)
    assert waiting(scheduler)[0] == "y1"


def test_no_steady_step_is_planned_while_a_request_is_passed_over() -> None:
    """The gate of one's own may open without an event that the scheduler knows of."""
    Barred.passes = {"b"}
    scheduler = small(discipline=BARRED[0])
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=20), 0.0)
    before = scheduler.plan(0.0)
    for _ in range(3):
        commit(scheduler, before)
        after = scheduler.plan(0.0)
        assert after.rows is not before.rows
        assert gate(scheduler) == ("a permit", "b", 0)
        before = after
    Barred.passes = set()
    commit(scheduler, before)
    assert scheduler.plan(0.0).to_dict()["new"] == ["b"]


def test_steady_steps_go_on_where_those_behind_are_short_of_slots() -> None:
    scheduler = small(discipline=ONE_ADAPTER, max_num_seqs=1)
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=20), 0.0)
    for _ in range(3):
        step(scheduler)
    before = scheduler.plan(0.0)
    commit(scheduler, before)
    assert scheduler.plan(0.0).rows is before.rows


# -- what is said -------------------------------------------------------------


def test_the_reason_is_given_to_whom_it_concerns() -> None:
    Barred.passes = {"b"}
    scheduler = small(discipline=BARRED[0], max_num_seqs=2)
    for name in "abcd":
        scheduler.submit(ask(name, 3, max_tokens=3), 0.0)
    for now in (0.0, 1.0):
        step(scheduler, now=now)
    assert scheduler.why() == {
        "b": "for a permit",
        "d": "for a slot (max_num_seqs)",
    }
    Barred.passes = set()
    for now in (2.0, 3.0, 4.0):
        step(scheduler, now=now)
    told = "waited 3.0 s: 2.0 s for a permit, 1.0 s for a slot (max_num_seqs)."
    assert told in scheduler.explain("b")
    assert "for a permit" not in scheduler.explain("d")


def test_all_may_be_passed_over_and_each_says_why() -> None:
    Barred.passes = {"a", "b"}
    scheduler = small(discipline=BARRED[0])
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    assert step(scheduler)["new"] == []
    assert gate(scheduler) == ("a permit", "a", 0)
    assert scheduler.why() == {"a": "for a permit", "b": "for a permit"}


def test_one_that_ends_while_it_is_passed_over_is_forgotten() -> None:
    Barred.passes = {"b"}
    scheduler = small(discipline=BARRED[0])
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    step(scheduler, now=0.0)
    step(scheduler, now=1.0)
    assert scheduler.abort("b", 2.0)
    step(scheduler, now=3.0)
    assert "waited 2.0 s: 2.0 s for a permit." in scheduler.explain("b")
    assert scheduler.why() == {}
    scheduler.check()


# -- those who return, and those who displace ---------------------------------


def test_a_swapped_one_is_passed_over_too() -> None:
    scheduler = small(
        discipline=BARRED[0],
        num_blocks=3,
        max_num_seqs=2,
        preemption_mode="swap",
        swap_space=4,
    )
    for name in "ab":
        scheduler.submit(ask(name, 4, max_tokens=5), 0.0)
    step(scheduler)
    while not scheduler.snapshot()["swapped"]:
        step(scheduler)
    Barred.passes = {"b"}
    scheduler.submit(ask("c", 2, max_tokens=2), 0.0)
    seen = [name for _ in range(12) for name in step(scheduler)["new"]]
    assert (seen, scheduler.snapshot()["swapped"]) == (["c"], ["b"])
    assert scheduler.why() == {"b": "for a permit"}
    Barred.passes = set()
    assert step(scheduler)["resumed"] == ["b"]
    finish_all(scheduler)


@pytest.mark.parametrize(("barred", "displaced"), [(set[str](), ["a"]), ({"b"}, [])])
def test_only_one_that_the_gates_would_let_in_displaces(
    barred: set[str], displaced: list[str]
) -> None:
    Barred.stops = barred
    scheduler = small(
        discipline=BARRED[0], policy="priority", preempt_on_arrival=True, max_num_seqs=1
    )
    scheduler.submit(ask("a", 3, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, priority=1), 0.0)
    assert step(scheduler)["preempted"] == displaced


def test_a_gate_is_asked_about_the_state_without_those_to_be_displaced() -> None:
    scheduler = small(discipline=ONE_ADAPTER, policy="priority", preempt_on_arrival=True)
    scheduler.submit(ask("a", 3, priority=5, adapter="x"), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, priority=1, adapter="y"), 0.0)
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["preempted"], plan["new"]) == (["a"], ["b"])
