"""Requests that the policy lets wait."""

from paceline.core.settings.config import Config
from paceline.sched.admission.gates import PolicyRoom
from paceline.sched.admission.step_room import Shut
from paceline.sched.state import SchedulerState
from tests.sched.admission.support import Newcomer, room


def test_a_request_waits_that_its_policy_leaves_nothing() -> None:
    gate = PolicyRoom()
    assert gate.shut(Newcomer(room=0, tokens=0), room(left=8)) == Shut("room", lasting=False)
    assert gate.shut(Newcomer(room=2, tokens=2), room(left=8)) is None


def test_a_step_without_budget_is_not_the_policys_doing() -> None:
    assert PolicyRoom().shut(Newcomer(room=0, tokens=0), room(left=0)) is None


def test_only_a_policy_that_leaves_less_has_the_gate() -> None:
    made = {
        name: PolicyRoom.create(config, SchedulerState(config))
        for name in ("fcfs", "longest")
        if (config := Config.of(policy=name))
    }
    assert made["fcfs"] is None
    assert made["longest"] is not None
