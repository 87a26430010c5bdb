"""Rows of residents and of an arrival look the same to a limit."""

from tests.sched.limits.support import arrival, residents, row


def test_rows_of_residents_are_read_from_the_table() -> None:
    rows = residents(5, 1, left=9, start=(3, 31))
    assert (rows.want.tolist(), rows.start.tolist()) == ([5, 1], [3, 31])
    assert (rows.known.tolist(), rows.limit.tolist()) == ([32, 32], [64, 64])
    assert [rows.sequence(one).serial for one in (0, 1)] == [0, 1]
    assert (rows.left, rows.first, rows.arriving, rows.used) == (9, True, False, {})


def test_rows_may_begin_behind_where_residents_stand() -> None:
    made = residents(5, 1, start=(3, 31))
    rows = type(made)(made._table, made.slot, row(1, 1), 9, start=row(8, 32))
    assert rows.start.tolist() == [8, 32]


def test_an_arrival_is_a_column_of_one_row() -> None:
    one = arrival(7, left=9, first=False, start=16, limit=40, used={"items": 2})
    assert (one.want.tolist(), one.start.tolist(), one.slot.tolist()) == ([7], [16], [])
    assert (one.known.tolist(), one.limit.tolist(), one.rest) == ([32], [40], 7)
    assert (one.left, one.first, one.arriving, one.used) == (9, False, True, {"items": 2})
    assert one.sequence(0).id == "r0"
