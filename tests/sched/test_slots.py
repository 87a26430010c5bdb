"""The columns, on hand-written rows."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline.core.arrays import I32, Index
from paceline.core.request import Sequence
from paceline.sched.slots import Idle, SlotTable
from tests.sched.support import ask


def column(*values: int) -> I32:
    return np.array(values, np.int32)


def slots(*values: int) -> Index:
    return np.array(values, np.intp)


def sequence(name: str = "a", prompt: int = 3, max_tokens: int = 4, serial: int = 0) -> Sequence:
    request = ask(name, prompt, max_tokens)
    return Sequence(request, serial, prompt + max_tokens, 0.0, request.prompt)


def table(*prompts: int, slots: int = 4) -> SlotTable:
    """A table with one resident per prompt, in slots 0, 1, 2, ..."""
    made = SlotTable(slots, 32)
    for serial, prompt in enumerate(prompts):
        made.admit(sequence(f"r{serial}", prompt, serial=serial), 0, 0)
    return made


def test_admission_fills_every_column() -> None:
    made, one = SlotTable(4, 32), sequence("a", prompt=5, max_tokens=4, serial=7)
    slot = made.admit(one, computed=4, drafts=2)
    assert one.slot == slot == 0
    assert made.tokens[slot, :5].tolist() == one.request.prompt.tolist()
    assert (made.known[slot], made.planned[slot], made.computed[slot]) == (5, 4, 4)
    assert (made.prompt[slot], made.given[slot], made.limit[slot]) == (5, 5, 9)
    assert (made.most_drafts[slot], made.acceptance[slot]) == (2, 0.5)
    assert (made.misses[slot], made.draft_at[slot]) == (0, 0)
    assert (made.serial[slot], made.name[slot], made.sequence(slot)) == (7, "a", one)
    assert (made.child[slot], made.silent[slot], made.ceiling[slot]) == (-1, False, 8)
    assert (made.vacant, made.drafting, made.order.tolist()) == (3, 1, [0])


def test_max_tokens_tells_when_a_sequence_ends_and_nothing_else_does() -> None:
    made = SlotTable(4, 32)
    for serial, most in enumerate((4, None)):
        request = ask("a", 3, most)
        made.admit(Sequence(request, serial, 7, 0.0, request.prompt), 0, 0)
    assert made.bounded.tolist() == [True, False, False, False]


def test_a_resumed_sequence_is_given_its_outputs_too() -> None:
    made, one = SlotTable(4, 32), sequence(prompt=3)
    one.tokens = np.array([*one.tokens, 8, 9], np.int32)
    slot = made.admit(one, 0, 0)
    assert (made.known[slot], made.given[slot], made.prompt[slot]) == (5, 5, 3)


def test_release_writes_the_tokens_back_and_makes_results_stale() -> None:
    made, one = SlotTable(4, 32), sequence(prompt=3)
    slot = made.admit(one, 0, drafts=1)
    rows = made.rows(slots(slot), column(0), column(3), column(0))
    made.append(slots(slot), np.array([[8]], np.int32), column(1))
    assert made.alive(rows).tolist() == [True]
    assert made.release(slot) is one
    assert one.tokens.tolist() == [*one.request.prompt.tolist(), 8]
    assert (one.slot, made.vacant, made.drafting, made.order.tolist()) == (-1, 4, 0, [])
    assert made.alive(rows).tolist() == [False]
    made.check()


def test_rows_never_move_and_the_order_is_that_of_admission() -> None:
    made = table(3, 3, 3)
    before = made.order
    made.release(1)
    assert (made.sequence(0).id, made.sequence(2).id) == ("r0", "r2")
    again = sequence("r3", serial=3)
    assert made.admit(again, 0, 0) == 1
    assert made.order.tolist() == [0, 2, 1]
    assert before.tolist() == [0, 1, 2]  # a plan may still look at it
    made.check()


def test_results_for_an_earlier_resident_of_a_slot_are_not_its_successors() -> None:
    made = table(3, 3)
    rows = made.rows(slots(0, 1), column(0, 0), column(3, 3), column(0, 0))
    made.release(1)
    made.admit(sequence("r2", serial=2), 0, 0)
    assert made.alive(rows).tolist() == [True, False]


def test_a_vacant_slot_has_no_sequence() -> None:
    with pytest.raises(AssertionError, match="slot 2 is vacant"):
        table(3).sequence(2)


@pytest.mark.parametrize(
    ("planned", "known", "rest"),
    [
        (0, 5, 5),  # nothing of the prompt yet
        (3, 5, 2),  # the rest of it
        (5, 6, 1),  # a decode
        (6, 6, 1),  # its sample is in flight: one further
        (7, 6, 1),  # two are
        (8, 6, 0),  # the sample of position 7 is the last one: limit 9
        (8, 9, 0),
    ],
)
def test_remaining_is_what_is_known_and_not_planned_or_one(
    planned: int, known: int, rest: int
) -> None:
    made = table(5)  # of 5 + 4 tokens
    made.advance(slots(0), column(planned))
    if known > 5:
        made.append(slots(0), np.full((1, known - 5), 8, np.int32), column(known - 5))
    assert made.remaining(slots(0)).tolist() == [rest]


def test_a_row_samples_only_if_it_reaches_the_last_known_token() -> None:
    made = table(5, 5)
    rows = made.rows(slots(0, 1), column(0, 0), column(4, 5), column(0, 0))
    assert rows.samples.tolist() == [False, True]
    assert rows.request_id.tolist() == ["r0", "r1"]
    assert len(rows) == 2


def test_rejected_drafts_leave_both_counters() -> None:
    made = table(5, 5)
    made.advance(slots(0, 1), column(9, 9))
    made.confirm(slots(0, 1), column(9, 9), column(0, 3))
    assert made.computed[:2].tolist() == [9, 6]
    assert made.planned[:2].tolist() == [9, 6]


def test_what_drafts_taught_is_forgotten_with_the_sequence() -> None:
    made = table(5)
    made.learn(slots(0), np.array([0.9], np.float32), column(3), np.array([12]))
    assert (made.acceptance[0], made.misses[0], made.draft_at[0]) == (np.float32(0.9), 3, 12)
    made.release(0)
    slot = made.admit(sequence("b", prompt=2), computed=0, drafts=1)
    assert (slot, made.acceptance[0], made.misses[0], made.draft_at[0]) == (0, 0.5, 0, 0)


def test_each_row_appends_its_own_count() -> None:
    made = table(1, 2, 3)
    ids = np.array([[71, 72], [81, 82], [91, 92]], np.int32)
    made.append(slots(0, 1, 2), ids, column(2, 0, 1))
    assert made.known[:3].tolist() == [3, 2, 4]
    assert made.tokens[0, 1:3].tolist() == [71, 72]
    assert made.tokens[1, 2] == 0
    assert made.tokens[2, 3:5].tolist() == [91, 0]


def test_the_steady_append_is_one_computed_and_one_known() -> None:
    made = table(1, 2)
    made.advance(slots(0, 1), column(1, 2))
    made.append_one(slots(0, 1), column(71, 81))
    assert made.known[:2].tolist() == [2, 3]
    assert made.computed[:2].tolist() == [1, 2]
    assert (made.tokens[0, 1], made.tokens[1, 2]) == (71, 81)
    made.advance(slots(1), column(3))
    made.append_one(slots(1), column(82))
    assert (made.known[:2].tolist(), made.computed[:2].tolist()) == ([2, 4], [1, 3])
    assert made.tokens[1, 2:4].tolist() == [81, 82]


# -- families ----------------------------------------------------------------


def child(number: int, **asked: Any) -> Sequence:
    request = ask("a", 3, 4, **asked)
    return Sequence(request, number, 7, 0.0, request.prompt, child=number)


def test_a_slot_that_is_kept_is_nobody_elses() -> None:
    made = table(3, slots=4)
    kept = made.reserve()
    assert (made.vacant, made.order.tolist()) == (2, [0])
    made.check()
    others = [made.admit(sequence(f"x{number}"), 0, 0) for number in range(2)]
    assert kept not in others
    assert made.admit(child(1, n=2), 2, 0, slot=kept) == kept
    assert made.vacant == 0
    made.check()


def test_a_slot_that_is_not_needed_after_all_is_vacant_again() -> None:
    made = table(3)
    made.give_back(made.reserve())
    assert made.vacant == 3
    made.check()


def test_a_row_says_which_child_it_is_of() -> None:
    made = SlotTable(4, 32)
    for number in range(2):
        made.admit(child(number, n=2), 0, 0)
    made.admit(sequence("b"), 0, 0)
    rows = made.rows(slots(0, 1, 2), column(0, 0, 0), column(3, 3, 3), column(0, 0, 0))
    assert rows.child.tolist() == [0, 1, -1]
    assert rows.labels == ["0_a", "1_a", "b"]


@pytest.mark.parametrize(
    ("asked", "silent"), [({"n": 2}, 0), ({"best_of": 2}, 2), ({"beam_width": 2}, 2)]
)
def test_those_that_are_told_of_only_at_the_end_are_silent(
    asked: dict[str, int], silent: int
) -> None:
    made = SlotTable(4, 32)
    for number in range(2):
        made.admit(child(number, **asked), 0, 0)
    assert (made.silenced, int(made.silent.sum())) == (silent, silent)
    made.check()
    made.release(0)
    assert made.silenced == max(silent - 1, 0)
    made.check()
    made.release(1)
    assert made.silenced == 0
    made.check()


def test_a_fork_stands_behind_the_one_it_came_from() -> None:
    made = table(3, 3, 3)
    before = made.order
    made.stand_behind(2, 0)
    assert made.order.tolist() == [0, 2, 1]
    assert before.tolist() == [0, 1, 2]  # a plan may still look at it
    made.check()
    assert made.admit(sequence("r3", serial=3), 0, 0) == 3
    assert made.order.tolist() == [0, 2, 1, 3]
    made.release(2)
    assert made.order.tolist() == [0, 1, 3]
    made.check()


def test_a_cap_bounds_what_is_handed_out_until_it_is_lifted() -> None:
    made = table(5)  # of 5 + 4 tokens
    made.cap(0, "fork", 3)
    assert made.remaining(slots(0)).tolist() == [3]
    made.advance(slots(0), column(3))
    assert made.remaining(slots(0)).tolist() == [0]
    made.lift(0, "fork")
    assert (made.ceiling[0], made.remaining(slots(0)).tolist()) == (8, [2])
    made.check()


def test_the_lowest_of_several_caps_counts_and_lifting_one_leaves_the_other() -> None:
    made = table(5)
    made.cap(0, "fork", 4)
    made.cap(0, "grammar", 6)
    assert made.ceiling[0] == 4
    made.lift(0, "fork")
    assert made.ceiling[0] == 6
    made.cap(0, "fork", 7)
    assert made.ceiling[0] == 6
    made.lift(0, "grammar")
    made.lift(0, "grammar")  # it is gone already
    assert made.ceiling[0] == 7
    made.check()


def test_a_cap_is_set_anew_in_either_direction_and_never_reaches_the_limit() -> None:
    made = table(5)
    for ceiling, expected in ((3, 3), (6, 6), (2, 2), (100, 8)):
        made.cap(0, "fork", ceiling)
        assert made.ceiling[0] == expected
    made.check()


def test_caps_do_not_outlive_their_sequence() -> None:
    made = table(5, 5)
    made.cap(0, "fork", 3)
    made.cap(1, "fork", 2)
    made.release(0)
    assert made.admit(sequence("next", 5, serial=9), 0, 0) == 0
    assert (made.ceiling[0], made.ceiling[1]) == (8, 2)
    made.check()


@pytest.mark.parametrize("seed", range(10))
def test_a_ceiling_is_the_least_of_the_caps_whatever_happens(seed: int) -> None:
    random, made = Random(seed), SlotTable(4, 32)
    caps: dict[int, dict[str, int]] = {}  # by resident slot
    for serial in range(300):
        slot = random.randrange(4)
        if slot not in caps:
            if made.vacant:
                caps[made.admit(sequence(f"r{serial}", serial=serial), 0, 0)] = {}
        elif random.random() < 0.1:
            made.release(slot)
            del caps[slot]
        elif random.random() < 0.6:
            name, ceiling = random.choice("abc"), random.randint(0, 9)
            made.cap(slot, name, ceiling)
            caps[slot][name] = ceiling
        else:
            name = random.choice("abc")
            made.lift(slot, name)
            caps[slot].pop(name, None)
        made.check()
        for resident, named in caps.items():
            assert made.ceiling[resident] == min([6, *named.values()])


def test_a_slot_needs_the_host_while_any_feature_does() -> None:
    made = table(5, 5)
    made.need_host(0, "scores")
    made.need_host(0, "grammar")
    made.release_host(0, "scores")
    made.release_host(0, "scores")
    made.release_host(1, "scores")
    assert made.needs_host == {0: {"grammar"}}
    made.check()
    made.need_host(1, "grammar")
    made.release(0)
    made.release_host(1, "grammar")
    assert made.needs_host == {}
    made.check()


def test_a_token_that_the_host_chose_is_known_and_computed_next() -> None:
    made = table(3)
    made.cap(0, "beams", 3)
    made.advance(slots(0), column(3))
    made.choose(0, 77)
    assert (made.known[0], made.tokens[0, 3]) == (4, 77)
    assert made.remaining(slots(0)).tolist() == [0]
    made.cap(0, "beams", 4)
    assert made.remaining(slots(0)).tolist() == [1]
    made.advance(slots(0), column(4))
    assert made.remaining(slots(0)).tolist() == [0]
    made.check()


def test_one_goes_on_from_what_another_knows() -> None:
    made = table(3, 3)
    made.advance(slots(0, 1), column(3, 3))
    made.confirm(slots(0), column(3), column(0))
    made.append(slots(0), np.array([[71, 72]], np.int32), column(2))
    made.rebase(1, 0)
    assert made.tokens[1, :5].tolist() == made.tokens[0, :5].tolist()
    assert (made.known[1], made.planned[1], made.computed[1]) == (5, 3, 3)
    made.tokens[0, 4] = 99
    assert made.tokens[1, 4] == 72


def test_idle_steps_are_counted_per_slot() -> None:
    made = table(1, 1)
    made.idle(slots(1), 4, np.array([Idle.BUDGET]))
    made.idle(slots(1), 5, np.array([Idle.ROOM]))
    assert (made.idle_at[1], made.idle_for[1]) == (5, Idle.ROOM)
    assert made.idle_steps[:2].tolist() == [0, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: setattr(made, "_listed", slots(0, 0)),
        lambda made: setattr(made, "_listed", slots(0)),
        lambda made: made._vacant.append(0),
        lambda made: made.computed.__setitem__(0, 1),
        lambda made: made.known.__setitem__(0, 99),
        lambda made: made.planned.__setitem__(0, 99),
        lambda made: setattr(made.sequence(0), "slot", 3),
        lambda made: made.reserve() and setattr(made, "_reserved", 0),
        lambda made: made.ceiling.__setitem__(0, 7),
        lambda made: (made.cap(0, "fork", 1), made.planned.__setitem__(0, 2)),
        lambda made: made._caps.__setitem__(0, {"fork": 1}),
        lambda made: made._caps.__setitem__(3, {}),
        lambda made: made.need_host(3, "toy"),
        lambda made: made.needs_host.__setitem__(0, set()),
        lambda made: made.silent.__setitem__(0, True),
    ],
)
def test_the_check_notices_a_broken_invariant(spoil: Callable[[SlotTable], object]) -> None:
    made = table(3, 3)
    made.check()
    spoil(made)
    with pytest.raises(AssertionError):
        made.check()
