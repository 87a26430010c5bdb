"""How a budget is split, on hand-written rows."""

import numpy as np
import pytest

from paceline.sched.policy import within_budget
from tests.sched.admission.limit_support import row


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
