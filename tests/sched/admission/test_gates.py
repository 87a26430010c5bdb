"""Each gate by itself, and a list of gates: the first that is shut stops the queue."""

from collections.abc import Iterator

import pytest

from paceline import Scheduler
from paceline.core.settings.config import Config
from paceline.sched.admission.admission import MOST_OVERTAKEN, MOST_PASSED_OVER
from paceline.sched.admission.gates import (
    FirstRow,
    FreeBlocks,
    Gates,
    HostCopy,
    PolicyRoom,
    VacantSlots,
)
from paceline.sched.admission.step_room import Shut
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
from tests.sched.support import (
    DISCIPLINES,
    PROMPT,
    SMALL,
    ask,
    commit,
    finish_all,
    gate,
    small,
    step,
)


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


def test_who_gets_no_position_waits_for_the_budget() -> None:
    gate = FirstRow()
    assert gate.shut(Newcomer(tokens=1), room()) is None
    shut = gate.shut(Newcomer(rest=8, tokens=0), room(left=5))
    assert shut == Shut("budget", 3, lasting=True)


def test_another_limit_is_called_by_its_name_and_may_open_at_any_time() -> None:
    shut = FirstRow().shut(Newcomer(rest=4, tokens=0, lacks="alignment"), room(left=5))
    assert shut == Shut("alignment", 0, lasting=False)


def test_an_entrant_needs_its_blocks_free() -> None:
    gate = FreeBlocks()
    assert gate.shut(Newcomer(blocks=5), room(free=5)) is None
    assert gate.shut(Newcomer(blocks=5), room(free=3)) == Shut("blocks", 2, lasting=True)
    assert gate.shut(Newcomer(blocks=1), room(free=-1)) == Shut("blocks", 2, lasting=True)


@DISCIPLINES
def test_capacity_is_what_is_free_after_the_hit_is_held(discipline: str) -> None:
    """Edge case 70: Four blocks are free, but two of them are the hit itself: no room for three
    more."""
    scheduler = small(num_blocks=6, discipline=discipline)
    scheduler.submit(ask("a", PROMPT[:9], max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 5, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("c", [*PROMPT[:8], *range(12)], max_tokens=1), 0.0)
    assert step(scheduler)["new"] == []
    scheduler.check()
    assert scheduler.state.journal.spells[-1].gate.short == 1


def test_a_swapped_sequence_waits_for_its_copy_to_end() -> None:
    gate = HostCopy()
    assert gate.shut(Newcomer(ready=True), room()) is None
    assert gate.shut(Newcomer(ready=False), room()) == Shut("swapping", lasting=False)


def test_only_a_scheduler_that_swaps_has_the_gate() -> None:
    plain, swapping = Config.of(), Config.of(swap_space=4)
    assert HostCopy.create(plain, SchedulerState(plain)) is None
    assert HostCopy.create(swapping, SchedulerState(swapping)) is not None


def test_a_request_waits_that_its_policy_leaves_nothing() -> None:
    gate = PolicyRoom()
    assert gate.shut(Newcomer(room=0, tokens=0), room(left=8)) == Shut("room", lasting=False)
    assert gate.shut(Newcomer(room=2, tokens=2), room(left=8)) is None


def test_a_step_without_budget_is_not_the_policys_doing() -> None:
    assert PolicyRoom().shut(Newcomer(room=0, tokens=0), room(left=0)) is None


def test_only_a_policy_that_leaves_less_has_the_gate() -> None:
    made = {
        name: PolicyRoom.create(config, SchedulerState(config))
        for name in ("fcfs", "longest")
        if (config := Config.of(policy=name))
    }
    assert made["fcfs"] is None
    assert made["longest"] is not None


def test_a_request_needs_a_slot_for_each_of_its_sequences() -> None:
    gate = VacantSlots()
    assert gate.shut(Newcomer(size=3), room(vacant=3)) is None
    assert gate.shut(Newcomer(size=3), room(vacant=1)) == Shut("seqs", 2, lasting=True)


@DISCIPLINES
def test_residents_are_counted_once_against_every_limit(discipline: str) -> None:
    """Edge case 66: A family of three and two others take five slots of five and five tokens of
    five."""
    scheduler = small(
        max_num_seqs=5, max_num_batched_tokens=5, discipline=discipline, num_blocks=32
    )
    scheduler.submit(ask("a", 2, max_tokens=9, n=3), 0.0)
    for name in "bc":
        scheduler.submit(ask(name, 2, max_tokens=9), 0.0)
    for _ in range(3):
        step(scheduler)
    assert step(scheduler)["tokens"] == {"0_a": 1, "1_a": 1, "2_a": 1, "b": 1, "c": 1}
    assert scheduler.state.table.vacant == 0


def test_a_parked_request_holds_no_slot() -> None:
    """Edge case 71: However many wait for something else, the slots are for those who run."""
    scheduler = small(max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 3), 0.0, parked="grammar")
    scheduler.submit(ask("d", 3), 0.0)
    assert step(scheduler)["new"] == ["d"]


def test_a_family_waits_until_there_are_slots_for_all() -> None:
    scheduler = small(max_num_seqs=3)
    scheduler.submit(ask("b", 3, max_tokens=3), 0.0)
    scheduler.submit(ask("a", 3, max_tokens=2, n=3), 0.0)
    for _ in range(3):
        assert step(scheduler)["tokens"].keys() == {"b"}
        assert gate(scheduler) == ("seqs", "a", 1)
    assert step(scheduler)["new"] == ["0_a"]


def test_a_family_counts_all_its_sequences_also_before_it_forks() -> None:
    scheduler = small(max_num_seqs=3, max_num_batched_tokens=4)
    scheduler.submit(ask("a", 9, n=3), 0.0)
    scheduler.submit(ask("b", 3), 0.0)
    for _ in range(2):
        step(scheduler)
        assert scheduler.state.table.vacant == 0
    assert gate(scheduler) == ("seqs", "b", 1)


def with_adapters(names: str, **settings: object) -> Scheduler:
    """Requests with the adapter that they are named after; "-" is none."""
    scheduler = small(max_num_seqs=8, num_blocks=64, **settings)
    for number, name in enumerate(names):
        adapter = "" if name == "-" else name
        scheduler.submit(ask(f"{name}{number}", 3, max_tokens=4, adapter=adapter), 0.0)
    return scheduler


@DISCIPLINES
def test_a_request_with_one_adapter_too_many_is_passed_over(discipline: str) -> None:
    scheduler = with_adapters("xyz-xz", max_loras=2, discipline=discipline)
    assert step(scheduler)["new"] == ["x0", "y1", "-3", "x4"]
    assert gate(scheduler) == ("an adapter slot", "z2", 1)
    assert scheduler.why()["z2"] == "for an adapter slot"
    scheduler.plan(2.0)
    assert "2.0 s for an adapter slot" in scheduler.explain("z2")


def test_without_the_setting_there_is_no_limit() -> None:
    assert step(with_adapters("xyz"))["new"] == ["x0", "y1", "z2"]


def test_a_request_without_an_adapter_needs_no_slot() -> None:
    assert step(with_adapters("x-y-", max_loras=1))["new"] == ["x0", "-1", "-3"]


def test_an_adapter_slot_is_free_after_the_last_request_that_uses_it() -> None:
    scheduler = with_adapters("xxy", max_loras=1)
    step(scheduler)
    assert scheduler.abort("x0", 0.0)
    assert step(scheduler)["new"] == []
    assert scheduler.abort("x1", 0.0)
    assert step(scheduler)["new"] == ["y2"]
    assert scheduler.state.table.adapters == {"y": 1}


def test_a_request_is_overtaken_for_a_bounded_time_only() -> None:
    """A stream of requests would keep the adapter of "y" out for ever."""
    scheduler = with_adapters("xy", max_loras=1)
    for number in range(2 * MOST_OVERTAKEN):
        scheduler.submit(ask(f"more{number}", 3, max_tokens=3, adapter="x"), 0.0)
        if "y1" in step(scheduler)["new"]:
            break
    else:
        raise AssertionError("it starves")
    finish_all(scheduler)


def test_a_better_request_displaces_residents_for_their_adapter() -> None:
    scheduler = small(policy="priority", preempt_on_arrival=True, max_loras=1)
    scheduler.submit(ask("a", 3, priority=5, adapter="x"), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, priority=1, adapter="y"), 0.0)
    plan = step(scheduler)
    assert (plan["new"], plan["preempted"]) == (["b"], ["a"])
    finish_all(scheduler)
