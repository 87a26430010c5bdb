"""Copies to the host that are still under way."""

from paceline.core.settings.config import Config
from paceline.sched.admission.gates import HostCopy
from paceline.sched.admission.step_room import Shut
from paceline.sched.state import SchedulerState
from tests.sched.admission.support import Newcomer, room


def test_a_swapped_sequence_waits_for_its_copy_to_end() -> None:
    gate = HostCopy()
    assert gate.shut(Newcomer(ready=True), room()) is None
    assert gate.shut(Newcomer(ready=False), room()) == Shut("swapping", lasting=False)


def test_only_a_scheduler_that_swaps_has_the_gate() -> None:
    plain, swapping = Config.of(), Config.of(swap_space=4)
    assert HostCopy.create(plain, SchedulerState(plain)) is None
    assert HostCopy.create(swapping, SchedulerState(swapping)) is not None
