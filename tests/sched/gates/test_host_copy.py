"""Copies to the host that are still under way."""

from paceline.sched.gates.gate import Shut
from paceline.sched.gates.host_copy import HostCopy
from tests.sched.gates.support import Newcomer, room


def test_a_swapped_sequence_waits_for_its_copy_to_end() -> None:
    gate = HostCopy()
    assert gate.shut(Newcomer(ready=True), room()) is None
    assert gate.shut(Newcomer(ready=False), room()) == Shut("swapping", lasting=False)
