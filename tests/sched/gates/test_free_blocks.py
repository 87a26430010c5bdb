"""Blocks for the entrant and its family."""

from paceline.sched.gates.free_blocks import FreeBlocks
from paceline.sched.gates.gate import Shut
from tests.sched.gates.support import Newcomer, room


def test_an_entrant_needs_its_blocks_free() -> None:
    gate = FreeBlocks()
    assert gate.shut(Newcomer(blocks=5), room(free=5)) is None
    assert gate.shut(Newcomer(blocks=5), room(free=3)) == Shut("blocks", 2, lasting=True)
    assert gate.shut(Newcomer(blocks=1), room(free=-1)) == Shut("blocks", 2, lasting=True)
