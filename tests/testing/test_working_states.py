"""The oracle notices a state that is not that of the positions before a row."""

from typing import Any

import pytest

from paceline.core.plan import StateMoves
from paceline.testing.oracle import OracleRunner
from tests.testing.test_oracle import Row, ask, enter, plan

SAVED = (6, 7)


class Served:
    """A request of five tokens that was computed in slot 0, and its state saved to blocks."""

    def __init__(self, **moves: Any) -> None:
        self.runner = OracleRunner(10, 2, 5000)
        self.runner.has_states = True
        self.request = ask("a", 1, 2, 3, 4, 5)
        came = enter(0, self.request, 0, 1, 2)
        self.runner.run(plan(Row(0, "a", 5, 0), admitted=(came,), states=StateMoves(**moves)))

    def again(self, states: StateMoves, cached: int = 4, slot: int = 1) -> None:
        """The same request once more, behind four positions."""
        came = enter(slot, ask("b", *self.request.prompt.tolist()), 0, 1, 3, cached=cached)
        self.runner.run(plan(Row(slot, "b", 5 - cached, cached), admitted=(came,), states=states))


def test_a_state_is_saved_and_loaded() -> None:
    one = Served()
    one.runner.lose(plan(released=(0,)))
    came = enter(0, ask("c", 1, 2, 3, 4), 4, 5)
    saved = StateMoves(saves=((0, SAVED),))
    one.runner.run(plan(Row(0, "c", 4, 0), admitted=(came,), states=saved))
    one.again(StateMoves(loads=((1, SAVED),)))


def test_a_state_of_other_positions_is_noticed_where_it_is_loaded() -> None:
    one = Served(saves=((0, SAVED),))
    with pytest.raises(AssertionError, match="'b' begins at 4 with another state in 6"):
        one.again(StateMoves(loads=((1, SAVED),)))


def test_a_state_whose_blocks_were_used_for_kv_is_noticed() -> None:
    one = Served(saves=((0, SAVED),))
    one.runner.put(SAVED[1], 1, 77)
    with pytest.raises(AssertionError, match="'b' begins at 5 with another state in 7"):
        one.again(StateMoves(loads=((1, SAVED),)), cached=5)


def test_a_row_without_its_state_is_noticed() -> None:
    one = Served()
    with pytest.raises(KeyError):
        one.again(StateMoves())
    one = Served()
    one.runner.lose(plan(released=(0,)))
    with pytest.raises(AssertionError, match="'b' position 4: another state in slot 0"):
        one.again(StateMoves(), slot=0)


def test_a_fork_has_a_copy_and_both_go_on() -> None:
    one = Served()
    with pytest.raises(AssertionError, match="'b' position 4: another state in slot 1"):
        one.again(StateMoves(copies=((0, 1),)))


def test_a_slot_that_was_given_up_is_saved_before_it_is_used_again() -> None:
    one = Served()
    came = enter(0, ask("c", 8, 9), 4)
    saved = StateMoves(saves_before=((0, SAVED),))
    one.runner.run(plan(Row(0, "c", 2, 0), admitted=(came,), released=(0,), states=saved))
    came = enter(1, ask("d", 1, 2, 3, 4, 5, 6), 0, 1, 2, cached=5)
    loaded = StateMoves(loads=((1, SAVED),))
    one.runner.run(plan(Row(1, "d", 1, 5), admitted=(came,), states=loaded))


def test_partial_blocks_are_copied_after_the_rows() -> None:
    one = Served(saves=((0, SAVED),), block_copies=((2, 9),))
    assert one.runner.cells[9] == one.runner.cells[2]


def test_a_spoiled_state_spoils_who_goes_on_from_it() -> None:
    runner = OracleRunner(10, 2, 5000)
    runner.has_states = True
    runner.spoiled = {"a"}
    saved = StateMoves(saves=((0, SAVED),))
    came = enter(0, ask("a", 1, 2), 0)
    assert runner.run(plan(Row(0, "a", 2, 0), admitted=(came,), states=saved)).failed
    runner.cells[0] = [runner.spoils[0].due[0], runner.spoils[0].due[1]]
    came = enter(1, ask("b", 1, 2, 3), 0, 1, cached=2)
    loaded = StateMoves(loads=((1, SAVED),))
    assert runner.run(plan(Row(1, "b", 1, 2), admitted=(came,), states=loaded)).failed
