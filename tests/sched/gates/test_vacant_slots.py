"""A slot for every sequence of a request."""

from paceline.sched.gates.gate import Shut
from paceline.sched.gates.vacant_slots import VacantSlots
from tests.sched.gates.support import Newcomer, room


def test_a_request_needs_a_slot_for_each_of_its_sequences() -> None:
    gate = VacantSlots()
    assert gate.shut(Newcomer(size=3), room(vacant=3)) is None
    assert gate.shut(Newcomer(size=3), room(vacant=1)) == Shut("seqs", 2, lasting=True)
