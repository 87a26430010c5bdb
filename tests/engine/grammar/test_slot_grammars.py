"""Columns of sequences that follow a grammar: masks, tokens and ends."""

import numpy as np

from paceline.core.constraint import Constraint
from paceline.engine.grammar.slot_grammars import GrammarState, SlotGrammars
from tests.property.grammars import END, grammar

VOCAB, FOREVER = 7, 99
SLOTS = np.array([3, 0, 5])


def held(*patterns: str, least: int = 0) -> SlotGrammars:
    found = SlotGrammars(1, (END,))
    for slot, pattern in zip(SLOTS.tolist(), patterns, strict=False):
        found.reach(slot)
        state = GrammarState(grammar(VOCAB, Constraint.regex(pattern)).matcher())
        found.enter(slot, state, least, jumps=True)
    return found


def masks(table: SlotGrammars, slots: np.ndarray = SLOTS) -> list[list[int]]:
    table.refresh(slots)
    rows = table.bits[table.lane[slots]]
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]


def test_sequences_advance_together_and_one_by_one() -> None:
    table = held("01", "[01]1?", "11")
    assert masks(table) == [[0], [0, 1], [1]]
    table.advance_each(SLOTS, np.array([0, 0, 1]))
    assert masks(table) == [[1], [1, END], [1]]
    assert table.usual(SLOTS, np.array([1, END, 1])).tolist() == [True, False, True]
    table.advance(0, [END, 1])  # nothing counts behind an end
    table.advance_each(SLOTS[[0, 2]], np.array([1, 1]))
    assert masks(table) == [[END], [END], [END]]
    assert table.outputs[SLOTS].tolist() == [2, 2, 2]
    assert table.usual(SLOTS, np.array([1, 1, 1])).tolist() == [True, False, True]
    assert not table.has_errors


def test_an_end_is_put_off_where_other_tokens_are_left() -> None:
    table = held("0*", "0", "[01]*", least=2)
    table.advance_each(SLOTS, np.array([0, 0, 0]))
    assert masks(table) == [[0], [END], [0, 1]]
    table.advance_each(SLOTS[[0, 2]], np.array([0, 1]))
    assert masks(table) == [[0, END], [END], [0, 1, END]]


def test_a_token_that_is_refused_stops_its_sequence() -> None:
    table = held("01", "01", "01")
    table.advance_each(SLOTS, np.array([0, 5, 0]))
    assert table.error(0) == "the constraint does not allow token 5"
    assert not table.error(3)
    assert masks(table) == [[1], [*range(32)], [1]]
    assert table.state(0).outputs == 0


def test_places_are_kept_and_rows_used_again() -> None:
    table = held("01", "01", "01")
    table.advance_each(SLOTS, np.array([0, 0, 0]))
    lane, state = int(table.lane[0]), table.leave(0)
    assert state.outputs == 1
    table.reach(9)
    table.enter(9, state, 0, jumps=True)
    assert (table.lane[9], table.lane[0]) == (lane, -1)
    assert masks(table, np.array([9, 3])) == [[1], [1]]


def test_masks_may_have_memory_of_others() -> None:
    table, memory = held("01", "11"), np.zeros((8, 1), np.int32)
    table.write_into(memory)
    assert masks(table, SLOTS[:2]) == [[0], [1]]
    assert (table.bits is memory, memory[:3, 0].tolist()) == (True, [1, 2, 0])


def test_tokens_that_are_the_only_ones_are_forced() -> None:
    table = held("0111(0|1)", "0[01]", "01")
    nothing, one = np.zeros(3, np.int32), np.ones(3, np.int32)
    assert table.forced(SLOTS, nothing) == {3: 0, 0: 0, 5: 0}
    assert table.jump(3, 0) == [0, 1, 1, 1]
    assert table.jump(0, 0) == [0]
    assert table.jump(5, 0) == [0, 1, END]
    assert table.going[SLOTS].tolist() == [True, True, False]
    assert table.forced(SLOTS, nothing) == {5: END}
    table.take_back(3, 2)
    assert masks(table) == [[1], [0, 1], [END]]
    assert table.outputs[SLOTS].tolist() == [2, 1, 3]
    table.advance_each(SLOTS[:1], np.array([1]))  # it was taken back: a miss
    table.look_at[:] = 0
    assert table.forced(SLOTS, one) == {5: END}  # slot 3 has one that is the first in a row
    assert table.forced(SLOTS, one) == {3: 1, 5: END}


def test_the_end_is_forced_where_it_may_not_be_put_off() -> None:
    table = held("0", "0?1?", "[01]*", least=FOREVER)
    table.advance_each(SLOTS, np.array([0, 0, 0]))
    assert table.forced(SLOTS, np.zeros(3, np.int32)) == {3: END, 0: 1}
