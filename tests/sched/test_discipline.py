"""A discipline is found by name or by path, and is one, or the complaint says what is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from paceline import ConfigError
from paceline.core.arrays import I32, Index
from paceline.core.config import Config
from paceline.sched.components import SchedulerComponents
from paceline.sched.composition import Composition
from paceline.sched.discipline import Discipline, load
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from paceline.sched.limits.rows import ArrivalRow
from tests.sched import constant_steps as steps
from tests.sched.support import SMALL, ask, crowded, finish_all, gate, small, step


class OneByOne(Discipline):
    """A discipline of one's own: whoever came first runs alone."""

    def build(self, now: float, admitting: bool) -> Composition:
        served = self._serve(*self._fit(self.demand))
        if not admitting or len(self._state.table.order):
            return self._admission.closed(served, "seqs", now, 1)
        step = self._admission.let_in(served, now, self.chunk)
        return replace(step, kind="mixed")

    def demand(self, slot: Index) -> I32:
        first = np.zeros(len(slot), np.int32)
        first[:1] = self._state.table.remaining(slot)[:1]
        return first

    def chunk(self, row: ArrivalRow) -> int:
        return row.rest if row.first and row.rest <= row.left else 0


class NotOne:
    """Something else."""


class Vague(Discipline):
    """Leaves open who computes how much."""


def loaded(name: str) -> Discipline:
    config = Config.of(**SMALL, discipline=name)
    return load(config, SchedulerComponents.of(config))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unified", Unified),
        ("prefill_first", PrefillFirst),
        ("paceline.sched.disciplines.prefill_first.PrefillFirst", PrefillFirst),
        (f"{__name__}.OneByOne", OneByOne),
    ],
)
def test_a_discipline_is_found_by_name_or_by_path(name: str, kind: type[Discipline]) -> None:
    assert type(loaded(name)) is kind


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("chaos", "no discipline 'chaos': there are prefill_first, unified, and"),
        ("", "no discipline ''"),
        ("nowhere.Any", "no discipline 'nowhere.Any': No module named 'nowhere'"),
        (f"{__name__}.Missing", "no discipline .*Missing"),
        (f"{__name__}.NotOne", "NotOne' is not a subclass of Discipline"),
        (f"{__name__}.SMALL", "SMALL' is not a subclass of Discipline"),
        (f"{__name__}.Vague", "Vague' does not say everything: build$"),
    ],
)
def test_what_is_no_discipline_is_refused_by_its_name(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        loaded(name)
    with pytest.raises(ConfigError, match=complaint):
        small(discipline=name)


def test_a_discipline_of_ones_own_builds_the_steps() -> None:
    scheduler = small(discipline=f"{__name__}.OneByOne")
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=2), 0.0)
    assert step(scheduler)["tokens"] == {"a": 3}
    assert (gate(scheduler) or ())[:2] == ("budget", "b")
    assert finish_all(scheduler) == {"a": [9], "b": [9, 9]}


# -- what holds in every discipline ------------------------------------------

BOTH = pytest.mark.parametrize("discipline", ["unified", "prefill_first"])


@BOTH
def test_the_life_of_a_victim_says_for_whom_it_gave_way(discipline: str) -> None:
    scheduler = crowded(discipline=discipline)
    step(scheduler)
    told = scheduler.explain("b")
    assert "preempted in step 2 with 5 tokens known, for want of 1 block for itself" in told


@BOTH
def test_what_several_lack_is_not_said_to_be_for_one(discipline: str) -> None:
    """Three want a block each, and none is free."""
    scheduler = small(discipline=discipline, num_blocks=3)
    for name in "abc":
        scheduler.submit(ask(name, 4, max_tokens=5), 0.0)
    step(scheduler)
    assert step(scheduler)["preempted"] == ["c", "b"]
    assert "for want of 3 blocks, first for 'a'." in scheduler.explain("c")
    assert "for want of 1 block for itself." in scheduler.explain("b")


@BOTH
def test_a_paused_scheduler_plans_nothing_and_says_so(discipline: str) -> None:
    scheduler = small(discipline=discipline)
    scheduler.submit(ask("a", 3), 0.0)
    scheduler.pause("all")
    assert step(scheduler)["tokens"] == {}
    assert gate(scheduler) == ("paused", "a", 0)


@BOTH
def test_admission_that_is_paused_leaves_residents_running(discipline: str) -> None:
    scheduler = small(discipline=discipline)
    scheduler.submit(ask("a", 3), 0.0)
    step(scheduler)
    scheduler.pause()
    scheduler.submit(ask("b", 3), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1}
    assert scheduler.why() == {"b": "while admission was paused"}
    scheduler.resume()
    assert step(scheduler)["new"] == ["b"]


@BOTH
def test_drafts_ride_on_what_is_left_and_never_preempt(discipline: str) -> None:
    scheduler = small(
        discipline=discipline,
        num_blocks=3,
        max_num_seqs=2,
        num_speculative_tokens=3,
        speculation="fixed",
    )
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=6), 0.0)
    step(scheduler)
    plan = step(scheduler, a=[1], b=[1])  # position 3, and drafts beyond the block for one
    assert (plan["drafts"], plan["preempted"]) == ({"a": 3}, [])
    assert scheduler.snapshot()["free_blocks"] == 0


def test_nobody_is_displaced_in_vain_for_what_is_shared_with_it() -> None:
    scheduler = steps.make(
        num_blocks=8, max_model_len=32, policy="priority", preempt_on_arrival=True
    )
    prefix = list(range(12))
    scheduler.submit(steps.request("m", [50] * 6, max_tokens=3), 0.0)
    scheduler.submit(steps.request("l", [*prefix, 40], max_tokens=4, priority=5), 0.0)
    steps.step(scheduler)
    scheduler.submit(steps.request("h", prefix + [41] * 16, max_tokens=2), 0.0)
    assert scheduler.plan(0.0).preempted == ()
    assert scheduler.snapshot()["running"] == ["m", "l"]
