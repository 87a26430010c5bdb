"""Rows that are not cut, except for the first one."""

import numpy as np
import pytest

from paceline.core.arrays import I32
from paceline.sched.admission.limits import WholeRows
from paceline.sched.admission.rows import WantedRows
from tests.sched.admission.limit_support import View, arrival, config, residents


def clip(rows: WantedRows) -> I32:
    return WholeRows.create(config(), View()).clip(rows)


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
def test_rows_are_served_whole_in_order_and_only_the_first_is_cut(
    budget: int, granted: list[int]
) -> None:
    shared = clip(residents(3, 4, 3, left=budget))
    assert shared.tolist() == granted
    assert shared.dtype == np.int32


def test_the_first_row_that_wants_anything_is_the_one_that_is_cut() -> None:
    assert clip(residents(0, 0, 5, 2, left=3)).tolist() == [0, 0, 3, 0]


def test_no_row_passes_one_that_does_not_fit() -> None:
    assert clip(residents(3, 9, 1, left=6)).tolist() == [3, 0, 0]


def test_without_rows_there_is_nothing_to_cut() -> None:
    assert clip(residents(left=0)).tolist() == []
    assert clip(residents(0, 0, left=0)).tolist() == [0, 0]


def test_rows_are_added_up_beyond_32_bits() -> None:
    big = 2**31 - 1
    assert clip(residents(big, big, big, left=big)).tolist() == [big, 0, 0]


def test_an_arrival_is_cut_only_if_it_is_the_first_of_its_step() -> None:
    assert clip(arrival(5, left=5, first=False)).tolist() == [5]
    assert clip(arrival(5, left=3, first=False)).tolist() == [0]
    assert clip(arrival(5, left=3, first=True)).tolist() == [3]
