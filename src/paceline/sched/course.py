"""What residents do in the steps to come, if no further request joins them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from paceline.core.arrays import I32, I64, Index
from paceline.core.request import Request
from paceline.kv.tables import Edges


class Joined(NamedTuple):
    """A request that joins with the first step of a course, and computes all `positions` in it that
    it lacks of its prompt."""

    request: Request
    slot: int
    positions: int


class Course(NamedTuple):
    """Each resident decodes one position per step up to its last one, and ends when it has the
    token of that. A turn plans a step and commits the oldest one in flight; at last, when no row is
    left, it only commits.

        turn          0   1   2   3            two steps in flight: `behind` is 1
        planned       p0  p1  p2               `left` of this row is 3
        committed     -   p0  p1  p2           it ends in turn 3: `behind + left - 1`

    base            the latest step
    slot, handle    of each row, oldest first; those that join are the last ones
    start           the position of each whose token the first step samples
    known           tokens of each
    left            steps that each still has a row in
    behind          steps in flight while the pipeline is full
    most            turns that can be made like this
    edges           blocks that they take; None: none
    finished        requests that ended since the latest plan
    released        slots that were given up since then
    repeats         would the first step repeat the rows of the latest one?
    joined          requests that join with the first step
    """

    base: int
    slot: Index
    handle: I64
    start: I32
    known: I32
    left: I32
    behind: int
    most: int
    edges: Edges | None
    finished: int
    released: Sequence[int]
    repeats: bool
    joined: Sequence[Joined] = ()

    @property
    def first_turn(self) -> I32:
        """The turn in which each row gets its next token: it has samples in the latest steps."""
        return self.known - self.start + (self.behind - 1)

    @property
    def last_turn(self) -> I32:
        """The turn in which each row gets its last token and ends."""
        return self.left + (self.behind - 1)

    @property
    def steps(self) -> int:
        """Steps until no row is left."""
        return int(self.left.max())

    def known_after(self, turns: int) -> I32:
        """Tokens of each row after so many turns, which have committed all steps in flight."""
        return self.start + np.minimum(self.left, turns - self.behind) + 1

    def tokens(self, turns: int) -> I64:  # [turns]
        """Tokens that all rows get in each of so many turns."""
        begins = np.bincount(self.first_turn, minlength=turns + 1)
        ends = np.bincount(np.minimum(self.last_turn + 1, turns), minlength=turns + 1)
        found: I64 = np.cumsum(begins[: turns + 1] - ends[: turns + 1])[:turns]
        return found

    def endings(self, turns: int) -> Iterator[tuple[int, list[int]]]:
        """The turns in which rows end, of so many, and those rows."""
        last = self.last_turn.tolist()
        for turn in sorted({turn for turn in last if turn < turns}):
            yield turn, [row for row, end in enumerate(last) if end == turn]

    def ended_before(self, first: int, end: int) -> list[tuple[int, int]]:
        """Of some turns those before which requests ended, since the turn before, and how many."""
        turns = [turn + 1 for turn in self.last_turn.tolist() if first <= turn + 1 < end]
        found = [(turn, turns.count(turn)) for turn in sorted(set(turns))]
        return [(0, self.finished), *found] if first == 0 and self.finished else found

    def is_built(self, step: int) -> bool:
        """Is a step built anew? It repeats the rows of the step before it if each resident had one
        there, of one position, and none has ended since or has no row left."""
        if step == 0:
            return bool(self.joined) or not self.repeats
        if step == 1 and self.joined:
            return True
        left, last = self.left.tolist(), self.last_turn.tolist()
        return any(
            one == step or end == step - 1 or (one < step <= end)
            for one, end in zip(left, last, strict=True)
        )

    def built(self, first: int, end: int) -> list[int]:
        """Which of some steps are built anew."""
        least = 1 + bool(self.joined)
        turns = set(range(first, min(least, end)))
        for left, last in zip(self.left.tolist(), self.last_turn.tolist(), strict=True):
            turns.update(range(max(left, first), min(last + 2, end)))
        return [turn for turn in sorted(turns) if self.is_built(turn)]

    def in_flight(self, turns: int) -> range:
        """The steps of the course that are in flight after so many turns."""
        return range(turns - self.behind, min(turns, self.steps))
