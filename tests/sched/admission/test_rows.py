"""Rows of residents and of an arrival look the same to a limit."""

import numpy as np

from paceline.sched.admission.rows import ResidentRows
from paceline.sched.slots import SlotTable
from tests.sched.admission.limit_support import LENGTH, arrival, residents, row, sequence


def test_rows_of_residents_are_read_from_the_table() -> None:
    rows = residents(5, 1, left=9, start=(3, 31))
    assert (rows.want.tolist(), rows.start.tolist()) == ([5, 1], [3, 31])
    assert (rows.known.tolist(), rows.limit.tolist()) == ([32, 32], [64, 64])
    assert [rows.sequence(one).serial for one in (0, 1)] == [0, 1]
    assert (rows.left, rows.first, rows.arriving, rows.used) == (9, True, False, {})


def test_rows_may_begin_behind_where_residents_stand() -> None:
    table = SlotTable(2, LENGTH)
    slots = np.array([table.admit(sequence(one), 3, drafts=0) for one in (0, 1)], np.intp)
    rows = ResidentRows(table, slots, row(1, 1), 9, start=row(8, 32))
    assert rows.start.tolist() == [8, 32]


def test_an_arrival_is_a_column_of_one_row() -> None:
    one = arrival(7, left=9, first=False, start=16, limit=40, used={"images": 2})
    assert (one.want.tolist(), one.start.tolist(), one.slot.tolist()) == ([7], [16], [])
    assert (one.known.tolist(), one.limit.tolist(), one.rest) == ([32], [40], 7)
    assert (one.left, one.first, one.arriving, one.used) == (9, False, True, {"images": 2})
    assert one.sequence(0).id == "r0"
