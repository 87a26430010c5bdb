"""Bodies of several prompts, of which others need not wait for all."""

from types import SimpleNamespace

import pytest

from paceline import ConfigError, Scheduler
from paceline.sched.admission.gates import SlotsForOthers
from paceline.sched.queue import SHARE_OF_SLOTS
from tests.sched.support import ask, order, small, step


def sharing(spared: int = 2, **settings: object) -> Scheduler:
    usual = {"max_num_seqs": 8, "num_blocks": 256, "max_num_batched_tokens": 64}
    return small(slots_for_others=spared, **usual | settings)


def submit(scheduler: Scheduler, count: int, origin: str = "x", tokens: int = 4) -> None:
    for number in range(count):
        scheduler.submit(ask(f"{origin}{number}", 3, max_tokens=tokens, origin=origin), 0.0)
    scheduler.check()


def running(scheduler: Scheduler) -> list[str]:
    return list(step(scheduler)["tokens"])


def test_a_body_leaves_slots_to_others() -> None:
    scheduler = sharing()
    submit(scheduler, 20)
    assert len(running(scheduler)) == 6
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    assert running(scheduler)[-2:] == ["a", "b"]


def test_without_an_origin_or_the_setting_nothing_is_held() -> None:
    for scheduler, origin in ((sharing(), ""), (sharing(spared=0), "x")):
        submit(scheduler, 20, origin)
        assert len(running(scheduler)) == 8


def test_a_request_that_comes_later_does_not_wait_for_the_whole_body() -> None:
    """Two of the body wait before it, and eighteen behind."""
    scheduler = sharing(max_num_seqs=3)
    submit(scheduler, 20)
    scheduler.submit(ask("single", 3), 0.0)
    assert order(scheduler).index("single") == 2


def test_all_of_a_body_come_to_their_turn_while_others_keep_coming() -> None:
    scheduler, came, ended = sharing(max_num_seqs=3), 0, set[str]()
    submit(scheduler, 10, tokens=2)
    for _ in range(100):
        while len(scheduler.state.queue) < 4:
            came += 1
            scheduler.submit(ask(f"s{came}", 3, max_tokens=2), 0.0)
        ended |= set(step(scheduler)["finished"])
    assert {f"x{number}" for number in range(10)} <= ended
    assert came > 10


def test_bodies_join_in_turn() -> None:
    scheduler = sharing()
    submit(scheduler, 10, "x")
    submit(scheduler, 10, "y")
    names = running(scheduler)
    assert sorted(name[0] for name in names) == ["x"] * 3 + ["y"] * 3


def test_what_was_held_runs_when_the_others_are_aborted_or_parked() -> None:
    scheduler = sharing(max_num_seqs=3)
    submit(scheduler, 5)
    assert scheduler.state.live["x2"].parked == SHARE_OF_SLOTS
    assert not scheduler.wake("x2", 0.0)
    assert scheduler.abort("x0", 0.0)
    assert not scheduler.state.live["x2"].parked
    assert scheduler.park("x1", "grammar", 0.0)
    assert not scheduler.state.live["x3"].parked
    scheduler.wake("x1", 0.0)  # its place is taken meanwhile
    assert scheduler.state.live["x1"].parked == SHARE_OF_SLOTS
    scheduler.abort("x4", 0.0)  # one that is held
    scheduler.check()
    assert set(order(scheduler)) == {"x1", "x2", "x3"}


def test_one_that_is_held_may_wait_for_something_else_as_well() -> None:
    """It joins when it has both: what it needs, and a share of the slots."""
    scheduler = sharing(spared=1, max_num_seqs=2)
    scheduler.submit(ask("x0", 3, origin="x"), 0.0)
    scheduler.submit(ask("x1", 3, origin="x"), 0.0, "grammar")
    assert scheduler.wake("x1", 0.0)
    assert scheduler.view.parked_for("x1") == SHARE_OF_SLOTS
    assert scheduler.park("x1", "adapter", 0.0)
    assert not scheduler.park("x1", "another", 0.0)
    scheduler.abort("x0", 0.0)
    scheduler.check()
    assert running(scheduler) == []
    assert scheduler.wake("x1", 0.0)
    assert running(scheduler) == ["x1"]


def test_a_pause_does_not_strand_a_body() -> None:
    scheduler = sharing()
    submit(scheduler, 4, tokens=9)
    scheduler.pause("new")
    step(scheduler)
    scheduler.resume()
    step(scheduler)
    assert len(running(scheduler)) == 4


def test_a_request_of_several_sequences_leaves_slots_and_is_passed_over_until_it_can() -> None:
    scheduler = sharing()
    scheduler.submit(ask("early", 3, max_tokens=3), 0.0)
    step(scheduler)
    scheduler.submit(ask("wide", 3, n=6), 0.0)
    scheduler.submit(ask("late", 3, max_tokens=3), 0.0)
    assert running(scheduler) == ["early", "late"]
    assert "some are left for others" in scheduler.why()["wide"]
    for _ in range(3):
        step(scheduler)
    assert len(running(scheduler)) == 6
    scheduler.submit(ask("single", 3), 0.0)
    assert "single" in running(scheduler)


def test_a_request_that_is_too_wide_to_leave_slots_takes_them_all() -> None:
    scheduler = sharing()
    scheduler.submit(ask("wide", 3, n=8), 0.0)
    step(scheduler)
    assert len(running(scheduler)) == 8


def test_a_request_that_is_held_is_explained() -> None:
    scheduler = sharing(max_num_seqs=3)
    submit(scheduler, 4)
    assert scheduler.why()["x3"] == f"parked for {SHARE_OF_SLOTS}"
    assert "parked for its share of slots" in scheduler.explain("x3")


@pytest.mark.parametrize("spared", [-1, 8])
def test_a_wrong_number_of_slots_is_refused(spared: int) -> None:
    with pytest.raises(ConfigError, match="slots_for_others"):
        sharing(spared)


def test_a_small_family_needs_its_own_slots_alone() -> None:
    scheduler = sharing()
    for number in range(3):
        scheduler.submit(ask(f"pair{number}", 3, n=2), 0.0)
    step(scheduler)
    assert len(running(scheduler)) == 6
    scheduler.submit(ask("last", 3, n=2), 0.0)
    step(scheduler)
    assert len(running(scheduler)) == 8


def test_a_family_that_was_preempted_returns_without_slots_for_others() -> None:
    gate = SlotsForOthers(2, 8)
    state = sharing()
    state.submit(ask("wide", 3, n=4), 0.0)
    sequence = state.components.state.live["wide"]
    room = SimpleNamespace(vacant=4)
    entrant = SimpleNamespace(size=4, sequence=sequence)
    shut = gate.shut(entrant, room)  # type: ignore[arg-type]
    assert shut is not None
    assert shut.short == 2
    sequence.preemptions = 1
    assert gate.shut(entrant, room) is None  # type: ignore[arg-type]
    sequence.preemptions = 0
