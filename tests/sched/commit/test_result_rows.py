"""Rows of a result, and a toy feature that takes part in committing them."""

from typing import ClassVar

import numpy as np
import pytest

from paceline import Plan, Scheduler, StepError, StepResult
from paceline.core.plan import Ended
from paceline.core.request import Finish
from paceline.sched.commit.accounting import Accounting
from paceline.sched.commit.result_rows import ResultHook, ResultRows
from tests.sched.support import answer, ask, commit, counters, small, state

FORBIDDEN = 13


class Toy(ResultHook):
    """Refuses one token, holds back all tokens of "held", reports none of "secret", and ends
    "secret" when it has three tokens more than its prompt."""

    moments: ClassVar[list[str]] = []

    def verify(self, plan: Plan, result: StepResult) -> None:
        if (result.ids == FORBIDDEN).any():
            raise StepError("a forbidden token")

    def arrived(self, rows: ResultRows) -> None:
        self.moments.append("arrived")
        rows.count[rows.rows.request_id == "held"] = 0

    def appended(self, rows: ResultRows) -> None:
        self.moments.append("appended")
        rows.reported = np.where(rows.rows.request_id == "secret", 0, rows.count)

    def ended(self, rows: ResultRows) -> list[Ended]:
        self.moments.append("ended")
        table, secret = self._state.table, self._state.live.get("secret")
        if secret is None or table.known[secret.slot] < table.prompt[secret.slot] + 3:
            return []
        return self._departures.finish(secret, Finish.STOP)


@pytest.fixture(autouse=True)
def with_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accounting, "hooks", (*Accounting.hooks, Toy))


def start(*names: str) -> tuple[Scheduler, Plan]:
    """A scheduler with the toy feature, and its first plan."""
    scheduler = small()
    for name in names:
        scheduler.submit(ask(name, 4, max_tokens=9), 0.0)
    Toy.moments.clear()
    return scheduler, scheduler.plan(0.0)


def test_a_feature_is_called_at_each_moment_in_order() -> None:
    scheduler, plan = start("a")
    assert commit(scheduler, plan) == {"a": {"tokens": [9], "finish": None}}
    assert Toy.moments == ["arrived", "appended", "ended"]


def test_a_feature_can_refuse_a_result_before_anything_changes() -> None:
    scheduler, plan = start("a")
    with pytest.raises(StepError, match="forbidden"):
        commit(scheduler, plan, a=[FORBIDDEN])
    assert counters(scheduler, "a") == (4, 4, 0)
    assert Toy.moments == []
    commit(scheduler, plan)
    assert counters(scheduler, "a") == (5, 4, 4)


def test_a_feature_can_hold_tokens_back() -> None:
    scheduler, plan = start("a", "held")
    assert commit(scheduler, plan) == {"a": {"tokens": [9], "finish": None}}
    assert counters(scheduler, "a") == (5, 4, 4)
    assert counters(scheduler, "held") == (4, 4, 4)
    assert scheduler.stats.sampled == 1


def test_a_feature_can_report_less_than_is_known_and_end_a_sequence() -> None:
    scheduler, plan = start("a", "secret")
    scheduler.state.table.need_host(scheduler.state.live["secret"].slot, "toy")
    got = [commit(scheduler, plan), *(commit(scheduler, scheduler.plan(0.0)) for _ in range(2))]
    assert [one["a"]["tokens"] for one in got] == [[9], [9], [9]]
    assert [one.get("secret") for one in got] == [None, None, {"tokens": [], "finish": "stop"}]
    assert state(scheduler, "a")["known"] == 7


def test_rows_that_are_stale_are_left_out() -> None:
    scheduler, plan = start("a", "b", "c")
    result = answer(plan, {"a": [1], "b": [2], "c": [3]})
    scheduler.abort("b", 0.0)
    rows = ResultRows.of(plan, result, scheduler.state.table.alive(plan.rows))
    assert rows.rows.request_id.tolist() == ["a", "c"]
    assert (rows.ids[:, 0].tolist(), rows.yielded.tolist()) == ([1, 3], [1, 1])
    assert [rows.source(row) for row in range(2)] == [0, 2]


def test_if_all_rows_are_here_the_result_is_not_copied() -> None:
    scheduler, plan = start("a", "b")
    result = answer(plan)
    rows = ResultRows.of(plan, result, scheduler.state.table.alive(plan.rows))
    assert rows.rows is plan.rows
    assert rows.ids is result.ids
    assert (rows.origin, rows.source(1)) == (None, 1)
