"""The limits of a step leave an arrival a row or not."""

from paceline.sched.admission.gates import FirstRow
from paceline.sched.admission.step_room import Shut
from tests.sched.admission.support import Newcomer, room


def test_who_gets_no_position_waits_for_the_budget() -> None:
    gate = FirstRow()
    assert gate.shut(Newcomer(tokens=1), room()) is None
    shut = gate.shut(Newcomer(rest=8, tokens=0), room(left=5))
    assert shut == Shut("budget", 3, lasting=True)


def test_another_limit_is_called_by_its_name_and_may_open_at_any_time() -> None:
    shut = FirstRow().shut(Newcomer(rest=4, tokens=0, lacks="alignment"), room(left=5))
    assert shut == Shut("alignment", 0, lasting=False)
