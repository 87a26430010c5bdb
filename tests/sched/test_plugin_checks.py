"""A policy, limit, gate or discipline that answers nonsense is named, with request and value."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline import ConfigError, Scheduler
from paceline.core.arrays import I32, Index
from paceline.core.errors import PluginError
from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.sched.admission.entrants import Entrant
from paceline.sched.admission.gates import AdmissionGate
from paceline.sched.admission.limits import Limit, LimitView
from paceline.sched.admission.rows import WantedRows
from paceline.sched.admission.step_room import StepRoom
from paceline.sched.composition import Composition
from paceline.sched.disciplines.unified import Unified
from paceline.sched.plugin_checks import is_within
from paceline.sched.policy import Policy
from paceline.sched.speculation import DraftRows, Speculation
from paceline.sched.state import SchedulerState
from tests.sched.support import ask, crowded, finish_all, small, step

ANSWERS: dict[str, Any] = {}  # of the policy below, by method; a test sets them


@pytest.fixture(autouse=True)
def clear() -> None:
    ANSWERS.clear()


class Odd(Policy):
    """Answers what a test wants, or what the default is."""

    def rank(self, sequence: Sequence) -> Any:
        return ANSWERS.get("rank", ())

    def victim(self) -> Any:
        return ANSWERS["victim"] if "victim" in ANSWERS else super().victim()

    def share(self, slot: Index, want: I32, budget: int) -> Any:
        given = ANSWERS.get("share")
        return super().share(slot, want, budget) if given is None else given(want, budget)

    def room(self, sequence: Sequence, rest: int, taken: int, left: int) -> Any:
        return ANSWERS.get("room", left)

    def flow(self, sequence: Sequence) -> Any:
        return ANSWERS.get("flow")

    def flow_rank(self, flow: Any) -> Any:
        return ANSWERS.get("flow_rank", 0.0)

    def displaceable(self, sequence: Sequence, now: float) -> Any:
        return ANSWERS.get("displaceable", [])

    def late(self, now: float) -> Any:
        return ANSWERS.get("late", ())


class Impatient(Policy):
    """Has no patience that can be compared."""

    patience_s = float("nan")


ODD = f"{__name__}.Odd"


def odd(**settings: Any) -> Scheduler:
    return small(policy=ODD, **settings)


@pytest.mark.parametrize(
    "rank", [(1.0,), (1, 2.5), (np.float32(2),), (np.int64(3), True)], ids=repr
)
def test_numbers_of_any_kind_are_a_rank(rank: Any) -> None:
    ANSWERS["rank"] = rank
    scheduler = odd()
    scheduler.submit(ask("a", 5), 0.0)
    assert "a" in finish_all(scheduler)


@pytest.mark.parametrize(
    "rank", [("high",), (float("nan"),), (1, None), "high", 5, [1], (1j,)], ids=repr
)
def test_a_rank_is_a_tuple_of_numbers(rank: Any) -> None:
    scheduler = odd()
    scheduler.submit(ask("a", 5), 0.0)
    ANSWERS["rank"] = rank
    with pytest.raises(
        PluginError, match=rf"policy '{ODD}': the rank of request 'b' is .*tuple of"
    ):
        scheduler.submit(ask("b", 5, n=2), 0.0)
    scheduler.check()
    ANSWERS.clear()
    scheduler.submit(ask("b", 5), 0.0)  # nothing of the refused one is left
    assert set(finish_all(scheduler)) == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("flow", [1], r"the flow of request 'a' is \[1\]; it must be hashable"),
        ("flow_rank", "x", "the rank of flow None is 'x'; it must be a number"),
        ("flow_rank", float("nan"), "the rank of flow None is nan"),
    ],
)
def test_flows_are_hashable_and_have_numbers(name: str, value: Any, problem: str) -> None:
    scheduler = odd()
    ANSWERS[name] = value
    with pytest.raises(PluginError, match=f"policy '{ODD}': {problem}"):
        scheduler.submit(ask("a", 5), 0.0)
    assert scheduler.idle


def ones(more: int) -> Any:
    return lambda want, budget: want + np.int32(more)


@pytest.mark.parametrize(
    ("share", "problem"),
    [
        (ones(1), "share gives request 'a' 2 positions; it must be from 0 to 1"),
        (ones(-2), "share gives request 'a' -1 positions; it must be from 0 to 1"),
        (lambda want, budget: want[:1], r"share returns .*for each of 2 rows"),
        (lambda want, budget: want * 0.5, "share returns numbers of type float64; they must be"),
        (lambda want, budget: None, "share returns None; it must be an array"),
        (
            lambda want, budget: want * 0,
            "share gives nothing to 2 residents, first of all request 'a'; they want 2 positions",
        ),
    ],
)
def test_a_share_is_within_what_is_wanted(share: Any, problem: str) -> None:
    scheduler = odd()
    for name in "ab":
        scheduler.submit(ask(name, 5), 0.0)
    step(scheduler)
    ANSWERS["share"] = share
    scheduler.submit(ask("c", 5), 0.0)  # so that the step is built anew
    with pytest.raises(PluginError, match=f"policy '{ODD}': {problem}"):
        scheduler.plan(0.0)


def test_a_share_is_within_the_budget() -> None:
    scheduler = odd(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 30), 0.0)
    step(scheduler)
    ANSWERS["share"] = lambda want, budget: want
    with pytest.raises(
        PluginError, match="share gives 22 positions to 1 residents; the budget is 8"
    ):
        scheduler.plan(0.0)


@pytest.mark.parametrize("room", [-1, 33, 1.5, "x", None], ids=repr)
def test_room_is_within_what_is_left(room: Any) -> None:
    scheduler = odd()
    scheduler.submit(ask("a", 5), 0.0)
    ANSWERS["room"] = room
    with pytest.raises(PluginError, match=r"the room of request 'a' is .* from 0 to 32"):
        scheduler.plan(0.0)


@pytest.mark.parametrize("slot", [-1, 7, 1.0, None], ids=repr)
def test_a_victim_is_a_resident(slot: Any) -> None:
    scheduler = crowded(policy=ODD)
    ANSWERS["victim"] = slot
    with pytest.raises(PluginError, match=f"policy '{ODD}': victim names slot {slot}, which holds"):
        scheduler.plan(0.0)


@pytest.mark.parametrize(
    ("slots", "problem"), [([3], "names slot 3, which holds"), ([0, 0], "names a slot twice")]
)
def test_who_is_displaced_is_a_resident(slots: list[int], problem: str) -> None:
    scheduler = crowded(policy=ODD)
    ANSWERS["displaceable"] = slots
    scheduler.submit(ask("c", 4), 0.0)
    with pytest.raises(PluginError, match=f"displaceable {problem}"):
        scheduler.plan(0.0)


def test_who_is_late_has_not_ended() -> None:
    scheduler = odd()
    scheduler.submit(ask("a", 5), 0.0)
    ended = scheduler.state.live["a"]
    scheduler.abort("a", 0.0)
    for late, problem in (([ended], "request 'a'"), (["a"], "'a'")):
        ANSWERS["late"] = late
        with pytest.raises(PluginError, match=f"late names {problem}; it must be a sequence"):
            scheduler.plan(0.0)


def test_patience_is_a_number_of_seconds() -> None:
    with pytest.raises(ConfigError, match="Impatient': patience_s is nan; it must be a number"):
        small(policy=f"{__name__}.Impatient")


# -- limits, gates, disciplines, speculation ----------------------------------


class Raising(Limit):
    """Gives a row more than it wants."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "Raising":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return rows.want + np.int32(1)


class Vague(AdmissionGate):
    """Says something else than a gate says."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "Vague":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Any:
        return "closed"


class RaisingLimit(Unified):
    limits = (*Unified.limits, Raising)


class VagueGate(Unified):
    gates = (*Unified.gates, Vague)


class Nothing(Unified):
    def build(self, now: float, admitting: bool) -> Any:
        return replace  # not a Composition

    def compose(self, now: float, admitting: bool) -> Any:
        return self.build(now, admitting)


class Twice(Unified):
    """Doubles the rows."""

    def build(self, now: float, admitting: bool) -> Composition:
        step = super().build(now, admitting)
        both = {
            name: np.tile(getattr(step, name), 2) for name in ("slot", "start", "count", "drafts")
        }
        return replace(step, **both)


class TooMuch(Unified):
    """Adds positions that were not handed out."""

    def build(self, now: float, admitting: bool) -> Composition:
        step = super().build(now, admitting)
        return replace(step, count=step.count + np.int32(1))


@pytest.mark.parametrize(
    ("discipline", "problem"),
    [
        ("RaisingLimit", "limit Raising gives request 'a' 6 positions; it must be from 0 to 5"),
        ("VagueGate", "gate Vague answers 'closed' for request 'a'; it must be a Shut, or None"),
        ("Nothing", f"discipline '{__name__}.Nothing' builds .*; it must be a Composition"),
        ("Twice", r"builds rows for slots \[(\d), \1\]; each must hold a request, once"),
        ("TooMuch", "gives request 'a' 6 positions from 0, but 5 are handed out"),
    ],
)
def test_parts_of_a_step_are_checked(discipline: str, problem: str) -> None:
    scheduler = small(discipline=f"{__name__}.{discipline}")
    scheduler.submit(ask("a", 5), 0.0)
    with pytest.raises(PluginError, match=problem):
        scheduler.plan(0.0)


class Unlimited(Unified):
    """Forgets the budget."""

    limits = ()


def test_a_step_is_within_the_budget() -> None:
    scheduler = small(discipline=f"{__name__}.Unlimited", max_num_batched_tokens=8)
    scheduler.submit(ask("a", 9), 0.0)
    with pytest.raises(PluginError, match="a step of 9 positions; max_num_batched_tokens is 8"):
        scheduler.plan(0.0)


class Eager(Speculation):
    """Drafts more than a row may have."""

    def drafts(self, rows: DraftRows) -> I32:
        return rows.most + np.int32(1)


def test_drafts_are_within_what_a_row_may_have() -> None:
    scheduler = small(speculation=f"{__name__}.Eager", num_speculative_tokens=2)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    with pytest.raises(PluginError, match="Eager' gives request 'a' 1 positions; it must be from"):
        scheduler.plan(0.0)


def test_whole_numbers_of_any_width_are_counts() -> None:
    most = np.array([3, 0], np.int32)
    assert is_within(np.array([3, 0]), most)
    assert is_within(np.array([2, 0], np.uint8), most)
    assert not is_within(np.array([4, 0]), most)
    assert not is_within(np.array([-1, 0]), most)
    assert not is_within([3, 0], most)
