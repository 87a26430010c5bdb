"""Blocks for the entrant and its family."""

from paceline.sched.admission.gates import FreeBlocks
from paceline.sched.admission.step_room import Shut
from tests.sched.admission.support import Newcomer, room
from tests.sched.support import DISCIPLINES, PROMPT, ask, finish_all, small, step


def test_an_entrant_needs_its_blocks_free() -> None:
    gate = FreeBlocks()
    assert gate.shut(Newcomer(blocks=5), room(free=5)) is None
    assert gate.shut(Newcomer(blocks=5), room(free=3)) == Shut("blocks", 2, lasting=True)
    assert gate.shut(Newcomer(blocks=1), room(free=-1)) == Shut("blocks", 2, lasting=True)


@DISCIPLINES
def test_capacity_is_what_is_free_after_the_hit_is_held(discipline: str) -> None:
    """Edge case 70: Four blocks are free, but two of them are the hit itself: no room for three
    more."""
    scheduler = small(num_blocks=6, discipline=discipline)
    scheduler.submit(ask("a", PROMPT[:9], max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 5, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("c", [*PROMPT[:8], *range(12)], max_tokens=1), 0.0)
    assert step(scheduler)["new"] == []
    scheduler.check()
    assert scheduler.state.journal.spells[-1].gate.short == 1
