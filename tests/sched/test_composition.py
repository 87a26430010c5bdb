"""The rows of a step before they are handed out."""

import numpy as np

from paceline.core.plan import NOTHING_GROWN, Admitted
from paceline.sched.composition import NOTHING, Composition, JoiningRow
from tests.sched.support import ask


def served() -> Composition:
    """One resident that computes two positions and a draft."""
    column = np.array([3], np.int32)
    return Composition(np.array([5]), np.array([7], np.int32), column, np.array([1], np.int32))


def newcomer() -> Admitted:
    request = ask("a", 3)
    return Admitted(2, request, request.prompt, 0, (1,), resumed=False)


def test_nothing_has_no_rows_and_no_gate() -> None:
    assert [len(column) for column in (NOTHING.slot, NOTHING.start, NOTHING.count)] == [0, 0, 0]
    assert (NOTHING.gate, NOTHING.admitted, NOTHING.kind) == (None, (), "mixed")
    assert NOTHING.grown is NOTHING_GROWN


def test_rows_of_newcomers_stand_behind_and_have_no_drafts() -> None:
    new = newcomer()
    step = served().joined([JoiningRow(2, 0, 4), JoiningRow(6, 8, 1)], [new])
    assert step.slot.tolist() == [5, 2, 6]
    assert step.start.tolist() == [7, 0, 8]
    assert step.count.tolist() == [3, 4, 1]
    assert step.drafts.tolist() == [1, 0, 0]
    assert step.admitted == (new,)
    assert [column.dtype for column in (step.slot, step.start, step.count, step.drafts)] == [
        np.intp,
        np.int32,
        np.int32,
        np.int32,
    ]


def test_one_may_come_in_without_a_row() -> None:
    before, new = served(), newcomer()
    step = before.joined([], [new])
    assert (step.slot is before.slot, step.admitted) == (True, (new,))


def test_joining_changes_nothing_of_what_was_there() -> None:
    before = served()
    before.joined([JoiningRow(2, 0, 4)], [])
    assert (before.slot.tolist(), before.admitted) == ([5], ())
