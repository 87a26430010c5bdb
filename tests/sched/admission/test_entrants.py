"""What it takes to let a sequence in."""

from typing import Any

import pytest

from paceline import Scheduler
from paceline.kv.hit import MISS
from paceline.sched.admission.entrants import Entrants, SwappedEntrant, WaitingEntrant
from paceline.sched.admission.limits import Budget, Limits
from paceline.sched.admission.rows import ArrivalRow
from paceline.sched.admission.step_room import StepRoom
from paceline.sched.groups.forks import Forks
from tests.sched.support import ask, crowded, sequence, small, step


def entrants(scheduler: Scheduler) -> Entrants:
    state, config = scheduler.state, scheduler.config
    return Entrants(config, state, Forks(scheduler.components), Limits((Budget,), config, state))


def cut(row: ArrivalRow) -> int:
    return min(row.rest, row.left)


def room(left: int = 32) -> StepRoom:
    return StepRoom(vacant=4, left=left, free=16, first=True)


@pytest.mark.parametrize(
    ("settings", "span"),
    [
        ({}, 13),
        ({"lookahead_slots": 3}, 16),
        ({"reserve_full_prompt": False}, 8),
        ({"reserve_full_prompt": False, "lookahead_slots": 3}, 11),
        ({"max_model_len": 14, "lookahead_slots": 3}, 14),
    ],
)
def test_an_admission_takes_the_blocks_of_what_it_knows_or_of_its_first_row(
    settings: dict[str, Any], span: int
) -> None:
    scheduler = small(**settings)
    scheduler.submit(ask("a", 13, max_tokens=1), 0.0)
    assert entrants(scheduler).span(sequence(scheduler, "a"), MISS, tokens=8) == span


def test_a_waiting_one_says_what_it_takes() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 13), 0.0)
    one = WaitingEntrant(entrants(scheduler), sequence(scheduler, "a"), room(left=8), cut)
    assert (one.size, one.rest, one.room, one.tokens, one.ready) == (1, 13, 8, 8, True)
    assert (one.hit, one.span) == (MISS, 13)
    assert [one.short_of_blocks(free) for free in (3, 4, 5)] == [1, 0, 0]


def test_one_that_gets_no_position_names_the_limit_that_gives_none() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 13), 0.0)
    one = WaitingEntrant(entrants(scheduler), sequence(scheduler, "a"), room(left=0), cut)
    assert (one.tokens, one.lacks) == (0, "budget")


def test_a_family_takes_a_slot_for_each_and_computes_what_it_shares() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 9, n=3), 0.0)
    one = WaitingEntrant(entrants(scheduler), sequence(scheduler, "a"), room(), cut)
    assert (one.size, one.rest, one.tokens) == (3, 8, 8)
    assert one.short_of_blocks(0) == 3 + 2


def test_blocks_of_the_hit_that_others_hold_are_not_needed_again() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9)), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", range(9)), 0.0)
    one = WaitingEntrant(entrants(scheduler), sequence(scheduler, "b"), room(), cut)
    assert (one.hit.tokens, one.rest) == (8, 1)
    assert [one.short_of_blocks(free) for free in (0, 1, 3)] == [1, 0, 0]


def test_a_swapped_one_needs_a_position_and_its_blocks() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    while not (swapped := scheduler.snapshot()["swapped"]):
        step(scheduler)
    head = sequence(scheduler, swapped[0])
    one = SwappedEntrant(entrants(scheduler), head, room())
    assert (one.size, one.rest, one.tokens, one.lacks) == (1, 1, 1, "budget")
    assert one.spans == [len(head.tokens)]
    assert one.short_of_blocks(0) == 2
    assert SwappedEntrant(entrants(scheduler), head, room(left=0)).tokens == 0
