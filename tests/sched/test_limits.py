"""What clips a row, on hand-written rows."""

import numpy as np
import pytest

from paceline.core.arrays import I32
from paceline.sched.limits import whole_rows, within_budget, within_length, within_threshold


def row(*counts: int) -> I32:
    return np.array(counts, np.int32)


def test_a_threshold_cuts_only_longer_rows() -> None:
    assert within_threshold(row(1, 4, 5, 900), 4).tolist() == [1, 4, 4, 4]


def test_a_threshold_of_zero_is_no_limit() -> None:
    assert within_threshold(row(1, 900), 0).tolist() == [1, 900]


def test_the_last_position_computed_is_the_one_whose_sample_reaches_the_limit() -> None:
    want, planned, limit = row(5, 5, 5), row(2, 6, 9), row(10, 10, 10)
    assert within_length(want, planned, limit).tolist() == [5, 3, 0]


def test_a_row_past_its_limit_gets_nothing_rather_than_less_than_nothing() -> None:
    assert within_length(row(3), row(12), row(10)).tolist() == [0]


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


def test_nobody_shares_a_budget_of_any_size() -> None:
    assert within_budget(row(), 0).tolist() == []


def test_sums_beyond_32_bits_do_not_wrap_around() -> None:
    big = 2**31 - 1
    assert within_budget(row(big, big, big), big).tolist() == [big, 0, 0]


@pytest.mark.parametrize(
    ("budget", "granted"),
    [
        (10, [3, 4, 3]),
        (9, [3, 4, 0]),
        (7, [3, 4, 0]),
        (6, [3, 0, 0]),
        (2, [2, 0, 0]),
        (0, [0, 0, 0]),
    ],
)
def test_whole_rows_are_served_in_order_and_only_the_first_is_cut(
    budget: int, granted: list[int]
) -> None:
    shared = whole_rows(row(3, 4, 3), budget)
    assert shared.tolist() == granted
    assert shared.dtype == np.int32


def test_the_first_row_that_wants_anything_is_the_one_that_is_cut() -> None:
    assert whole_rows(row(0, 0, 5, 2), 3).tolist() == [0, 0, 3, 0]


def test_nobody_passes_a_row_that_does_not_fit() -> None:
    assert whole_rows(row(3, 9, 1), 6).tolist() == [3, 0, 0]


def test_whole_rows_of_nobody_are_none() -> None:
    assert whole_rows(row(), 0).tolist() == []
    assert whole_rows(row(0, 0), 0).tolist() == [0, 0]


def test_whole_rows_are_added_up_beyond_32_bits() -> None:
    big = 2**31 - 1
    assert whole_rows(row(big, big, big), big).tolist() == [big, 0, 0]
