"""What a step costs does not grow with the number of requests that wait, under any policy.

Counted in calls, not in time: how often ranks are asked for and compared, and how many calls
of any kind a step makes in all.
"""

import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

from paceline import Plan, Request, Scheduler, StepResult
from paceline.core.request import Sequence
from paceline.sched.queue import REFRESHED_PER_STEP, Flow, WaitingQueue
from tests.conformance import courses
from tests.kept import kept

FEW, MANY = 100, 2_000
TENANTS = 1_000
STEPS = 30
STIRRED = 3  # times that requests come, go, are parked and woken between two steps
ASKED = ("rank", "flow_rank")
COMPARED = ("__lt__", "__gt__", "__le__", "__eq__")

every_policy = pytest.mark.parametrize("policy", courses.found())


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls made inside, by name; those of functions written in C as one."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls["C"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@cache
def invented(number: int) -> Request:
    """Requests differ in all that policies look at; some begin alike."""
    r = Random(number)
    prompt = [*range(r.choice([0, 4, 12])), *(r.randrange(999) for _ in range(r.randint(1, 12)))]
    return Request(
        id=f"r{number}",
        prompt=np.array(prompt, np.int32),
        max_tokens=r.randint(1, 4),
        priority=r.randint(0, 9),
        tenant=f"t{number % TENANTS}",
        deadline=r.choice([None, 100.0, 1000.0]),
    )


class Crowd:
    """A scheduler with many requests that wait, and more coming and going all the time."""

    def __init__(self, policy: str, number: int) -> None:
        self.scheduler = Scheduler.create(
            policy=policy,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=64,
            num_blocks=256,
            block_size=4,
            ageing_s=30.0,
            refuse_late=True,
        )
        self.random = Random(number)
        self.now = 0.0
        self.asleep: deque[str] = deque()
        self.names: list[str] = []
        for _ in range(number):
            self.submit()

    @property
    def queue(self) -> WaitingQueue:
        return self.scheduler.state.queue

    def submit(self) -> str:
        request = invented(len(self.names))
        self.scheduler.submit(request, self.now)
        self.names.append(request.id)
        return request.id

    def some(self) -> str:
        """A request that waits, or did."""
        return self.names[self.random.randrange(len(self.names))]

    def stir(self) -> None:
        """One of each: submit, abort, park, wake."""
        self.submit()
        self.scheduler.abort(self.some(), self.now)
        name = self.some()
        if self.scheduler.park(name, "grammar", self.now):
            self.asleep.append(name)
        if len(self.asleep) > 3:
            self.scheduler.wake(self.asleep.popleft(), self.now)

    def step(self) -> tuple[Plan, Counter[str]]:
        """One step; the calls are those of `plan` alone."""
        with counted() as calls:
            plan = self.scheduler.plan(self.now)
        self.commit(plan)
        calls["asked"] = sum(calls[name] for name in ASKED)
        calls["compared"] = sum(calls[name] for name in COMPARED)
        return plan, calls

    def commit(self, plan: Plan) -> None:
        sampling = plan.rows.request_id[plan.rows.samples].tolist()
        result = StepResult.of(plan, {name: [1] for name in sampling})
        self.now += 1.0
        self.scheduler.commit(plan, result, self.now)


@dataclass(frozen=True, slots=True)
class Bill:
    """The most calls of each kind that a single step or move makes, and what bulk cost."""

    calm: Counter[str]
    stirred: Counter[str]
    moves: Counter[str]
    bulk: list[int]  # all calls of each step after half of the crowd was aborted


@cache
def bill(policy: str, number: int) -> Bill:
    crowd = Crowd(policy, number)
    calm, stirred = worst(crowd, stirring=0), worst(crowd, stirring=STIRRED)
    moves = worst_moves(crowd)
    for name in crowd.names[: number // 2]:
        crowd.scheduler.abort(name, crowd.now)
    bulk = [crowd.step()[1].total() for _ in range(STEPS)]
    return Bill(calm, stirred, moves, bulk)


def worst(crowd: Crowd, stirring: int) -> Counter[str]:
    most, admitted = Counter[str](), 0
    for _ in range(STEPS):
        for _ in range(stirring):
            crowd.stir()
        plan, calls = crowd.step()
        admitted += len(plan.admitted)
        calls["all"] = calls.total() - calls["asked"] - calls["compared"]
        most |= calls
    assert admitted > STEPS, "hardly anybody was admitted, so this shows nothing"
    return most


def worst_moves(crowd: Crowd) -> Counter[str]:
    scheduler, now, most = crowd.scheduler, crowd.now, Counter[str]()
    for _ in range(20):
        name = crowd.submit()
        with counted() as submitted:
            other = crowd.submit()
        with counted() as parked:
            assert scheduler.park(name, "grammar", now)
        with counted() as woken:
            assert scheduler.wake(name, now)
        with counted() as aborted:
            assert scheduler.abort(other, now)
        spent = {"submit": submitted, "park": parked, "wake": woken, "abort": aborted}
        most |= Counter({move: calls.total() for move, calls in spent.items()})
    return most


@every_policy
@pytest.mark.parametrize("stirring", [0, STIRRED], ids=["calm", "stirred"])
def test_a_step_asks_and_compares_a_few_ranks_however_many_wait(policy: str, stirring: int) -> None:
    few, many = bill(policy, FEW), bill(policy, MANY)
    few, many = (few.stirred, many.stirred) if stirring else (few.calm, many.calm)
    # In a step at most 8 are admitted, 8 are asked again in turn, 8 turn out to have got worse
    # when they come to the front, and a few changed places since the last one. Each of these
    # moves asks for at most 4 ranks, and compares along one path of a heap.
    moves = 8 + 2 * REFRESHED_PER_STEP + 4 * stirring + 2
    assert many["asked"] <= 4 * moves, many
    assert many["compared"] <= moves * 2 * MANY.bit_length(), many
    # All in all, no more than with few, but for the longer paths.
    assert many["all"] <= 2 * few["all"] + 4 * moves * MANY.bit_length(), (few, many)


@every_policy
def test_coming_and_going_costs_the_same_however_many_wait(policy: str) -> None:
    few, many = bill(policy, FEW).moves, bill(policy, MANY).moves
    for move in ("submit", "abort", "park", "wake"):
        assert many[move] <= few[move] + 4 * MANY.bit_length(), move


@every_policy
def test_what_goes_in_bulk_is_paid_for_once(policy: str) -> None:
    """Half of all were aborted at once: a step or two may make up for it, and then it is over."""
    bulk, usual = bill(policy, MANY).bulk, bill(policy, MANY).stirred
    assert sum(bulk) <= 100 * MANY
    assert sorted(bulk)[-3] <= 4 * (usual["all"] + usual["compared"] + usual["asked"]), bulk


# -- memory -----------------------------------------------------------------


MOST_KEPT = 512  # of a handful of requests


@every_policy
def test_a_request_that_is_parked_and_woken_for_ever_leaves_nothing_behind(policy: str) -> None:
    crowd = Crowd(policy, 20)
    for _ in range(4):
        crowd.step()
    name = crowd.scheduler.snapshot()["waiting"][-1]
    for _ in range(1_000):
        assert crowd.scheduler.park(name, "grammar", crowd.now)
        assert crowd.scheduler.wake(name, crowd.now)
    assert kept(crowd.queue, Flow) <= MOST_KEPT


@every_policy
def test_requests_that_were_admitted_leave_nothing_behind(policy: str) -> None:
    """Each is of another tenant, and in some steps more come than are asked for ranks again."""
    crowd = Crowd(policy, 1)
    for _ in range(250):
        while len(crowd.queue) < 12:
            crowd.submit()
        crowd.commit(crowd.scheduler.plan(crowd.now))
    assert len(crowd.names) > 600
    assert kept(crowd.queue, Flow) <= MOST_KEPT


@every_policy
def test_requests_that_were_aborted_leave_nothing_behind(policy: str) -> None:
    crowd = Crowd(policy, 20)
    for _ in range(1_000):
        crowd.scheduler.abort(crowd.submit(), crowd.now)
    crowd.step()
    assert kept(crowd.queue, Flow) <= MOST_KEPT


def test_a_scan_of_all_who_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    head = WaitingQueue.head

    def scanning(queue: WaitingQueue, now: float) -> Sequence | None:
        for sequence in queue:
            crowd.scheduler.state.policy.rank(sequence)
        return head(queue, now)

    monkeypatch.setattr(WaitingQueue, "head", scanning)
    crowd = Crowd("fcfs", 500)
    assert crowd.step()[1]["asked"] >= 500
