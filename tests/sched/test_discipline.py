"""A discipline is found by name or by path, and is one, or the complaint says what is wrong."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from paceline import ConfigError
from paceline.core.arrays import I32, Index
from paceline.core.settings.config import Config
from paceline.sched.admission.limits import Budget
from paceline.sched.admission.rows import ArrivalRow
from paceline.sched.components import SchedulerComponents
from paceline.sched.composition import Composition
from paceline.sched.discipline import Discipline, load
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from tests.sched import constant_steps as steps
from tests.sched.support import (
    DISCIPLINES,
    SMALL,
    TOKEN,
    ask,
    by_priority,
    crowded,
    finish_all,
    gate,
    small,
    state,
    step,
)


class OneByOne(Discipline):
    """A discipline of one's own: whoever came first runs alone."""

    def build(self, now: float, admitting: bool) -> Composition:
        served = self.serve(*self.fit(self.demand))
        if not admitting or len(self.state.table.order):
            return self.admission.closed(served, "seqs", now, 1)
        step = self.admission.let_in(served, now, self.chunk)
        return replace(step, kind="mixed")

    def demand(self, slot: Index) -> I32:
        first = np.zeros(len(slot), np.int32)
        first[:1] = self.state.table.remaining(slot)[:1]
        return first

    def chunk(self, row: ArrivalRow) -> int:
        return row.rest if row.first and row.rest <= row.left else 0


class NotOne:
    """Something else."""


class Vague(Discipline):
    """Leaves open who computes how much."""


class NoComma(Unified):
    limits: ClassVar[Any] = Budget  # as in `(Budget)`


class Called(Unified):
    gates: ClassVar[Any] = (3,)


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
        (f"{__name__}.Vague", "Vague' does not define build$"),
        (f"{__name__}.NoComma", "limits of discipline .*NoComma' is <class .*Budget'>; it must be"),
        (
            f"{__name__}.Called",
            "gates of discipline .*Called' is .*; it must be a tuple",
        ),
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


def test_a_victim_earlier_in_the_order_makes_nobody_miss_the_step() -> None:
    """Edge case 2: The worst priority is the oldest resident; everybody behind it is still
    served."""
    scheduler = by_priority(num_blocks=5, max_num_seqs=3)
    scheduler.submit(ask("worst", 4, max_tokens=8, priority=9), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=8, priority=1), 0.0)
    scheduler.submit(ask("c", 4, max_tokens=8, priority=1), 0.0)
    step(scheduler)  # 3 blocks held, 2 free, and each needs one more
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == (["worst"], {"b": 1, "c": 1})


def test_a_victim_leaves_no_trace_in_the_step_and_its_budget_goes_to_others() -> None:
    """Edge case 3: Its row and its blocks are gone, and the prompt behind it gets its token of the
    budget."""
    scheduler = by_priority(num_blocks=5, max_num_batched_tokens=8, reserve_full_prompt=False)
    scheduler.submit(ask("worst", 4, max_tokens=16, priority=9), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 20, max_tokens=1, priority=0), 0.0)
    assert step(scheduler)["tokens"] == {"worst": 1, "b": 7}
    plan = step(scheduler)  # with 7 tokens more "b" would need 4 blocks, beside 2 of the worst
    assert (plan["preempted"], plan["tokens"]) == (["worst"], {"b": 8})
    assert list(plan["blocks"]) == ["b"]


def test_a_resident_that_gives_itself_up_does_not_end_the_step_for_others() -> None:
    """Edge case 4: The worst needs the block and is the victim; those behind it still run."""
    scheduler = by_priority(num_blocks=4, max_num_seqs=3)
    scheduler.submit(ask("a", 2, max_tokens=8, priority=1), 0.0)
    scheduler.submit(ask("worst", 4, max_tokens=8, priority=9), 0.0)
    scheduler.submit(ask("c", 7, max_tokens=8, priority=1), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == (["worst"], {"a": 1, "c": 1})


def test_lack_of_blocks_preempts_for_a_resident_and_stops_at_a_waiting_one() -> None:
    """Edge case 32: The same shortage, once for each."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", 4, max_tokens=5), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=5), 0.0)
    scheduler.submit(ask("c", 8), 0.0)
    first, second = step(scheduler), step(scheduler)
    assert (first["new"], first["preempted"]) == (["a", "b"], [])
    assert (second["new"], second["preempted"]) == ([], ["b"])


@DISCIPLINES
def test_a_lone_sequence_that_fills_the_pool_runs_to_its_end(discipline: str) -> None:
    """Edge case 68: It has nobody to preempt and needs nobody."""
    scheduler = small(num_blocks=3, discipline=discipline)
    scheduler.submit(ask("a", 1, max_tokens=12), 0.0)
    assert finish_all(scheduler) == {"a": [TOKEN] * 12}
    assert scheduler.stats.preemptions == 0


@DISCIPLINES
def test_a_lone_sequence_that_cannot_grow_gives_way_to_itself(discipline: str) -> None:
    """Edge case 68: The step is empty, and the next ones go on when there are blocks again."""
    scheduler = small(num_blocks=3, discipline=discipline)
    scheduler.submit(ask("a", 4, max_tokens=8), 0.0)
    step(scheduler)
    pool = scheduler.state.cache.pool
    taken = pool.take(pool.free)
    for _ in range(3):
        assert scheduler.plan(0.0).empty
    assert state(scheduler, "a")["preemptions"] == 1
    pool.drop(taken)
    assert finish_all(scheduler) == {"a": [TOKEN] * 7}
