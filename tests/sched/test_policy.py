"""Policies by name and by dotted path, and how a budget is split."""

import numpy as np
import pytest

from paceline import ConfigError
from paceline.core.request import Sequence
from paceline.sched.policy import Policy, within_budget
from tests.sched.admission.limit_support import row
from tests.sched.support import ask, small, step


class NewestFirst(Policy):
    """A policy of one's own."""

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (-sequence.serial,)


def test_a_policy_of_ones_own_is_found_by_its_path() -> None:
    scheduler = small(policy=f"{__name__}.{NewestFirst.__name__}", max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 5), 0.0)
    assert scheduler.snapshot()["waiting"] == ["c", "b", "a"]
    assert step(scheduler)["new"] == ["c"]


def test_a_policy_must_be_one() -> None:
    with pytest.raises(ConfigError, match="not a subclass of Policy"):
        small(policy="paceline.core.request.Request")


@pytest.mark.parametrize(
    ("budget", "granted"),
    [
        (10, [3, 4, 3]),
        (9, [3, 4, 2]),
        (7, [3, 4, 0]),
        (5, [3, 2, 0]),
        (1, [1, 0, 0]),
        (0, [0, 0, 0]),
    ],
)
def test_the_budget_serves_rows_in_order_and_cuts_the_last(budget: int, granted: list[int]) -> None:
    shared = within_budget(row(3, 4, 3), budget)
    assert shared.tolist() == granted
    assert shared.dtype == np.int32


def test_a_row_that_wants_nothing_is_no_obstacle() -> None:
    assert within_budget(row(0, 2, 0, 5), 4).tolist() == [0, 2, 0, 2]


def test_no_rows_share_a_budget_of_any_size() -> None:
    assert within_budget(row(), 0).tolist() == []


def test_sums_beyond_32_bits_do_not_wrap_around() -> None:
    big = 2**31 - 1
    assert within_budget(row(big, big, big), big).tolist() == [big, 0, 0]
