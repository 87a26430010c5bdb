"""The rows that limits clip."""

from abc import ABC, abstractmethod

import numpy as np

from paceline.core.arrays import I32, NO_INDEX, Index
from paceline.core.request import Sequence
from paceline.sched.slots import SlotTable
from paceline.sched.transfers.states import States

Used = dict[str, int]
"""Quantities that the rows of a step have used up, by the names that limits count them under."""


class WantedRows(ABC):
    """Rows in the order in which they are served; row i wants `want[i]` positions.

    want      positions that each row wants; limits replace it, and never raise it
    left      positions of the step's budget for these rows
    first     are these the first rows of the step?
    used      quantities that earlier rows have used up
    slot      of each row; an arrival has none yet
    arriving  is it the row of a sequence that joins in this step?
    """

    __slots__ = ("first", "left", "used", "want")

    arriving = False
    slot: Index  # [rows]

    def __init__(self, want: I32, left: int, first: bool, used: Used) -> None:
        self.want = want  # [rows]
        self.left = left
        self.first = first
        self.used = used

    @property
    @abstractmethod
    def start(self) -> I32:
        """The first position of each row."""

    @property
    @abstractmethod
    def known(self) -> I32:
        """Known tokens of each row's sequence; a row that ends before them is a chunk."""

    @property
    @abstractmethod
    def limit(self) -> I32:
        """Most tokens of each row's sequence."""

    @abstractmethod
    def ends(self, states: States) -> I32:
        """The position at which each row must end if it would go further, so that its state can be
        kept; 0: none."""

    @abstractmethod
    def sequence(self, row: int) -> Sequence:
        """The sequence of a row."""

    @abstractmethod
    def rest_of(self, row: int) -> int:
        """Positions that a row would want without limits."""


class ResidentRows(WantedRows):
    """Rows of residents, oldest first."""

    __slots__ = ("_start", "_table", "slot")

    def __init__(
        self, table: SlotTable, slot: Index, want: I32, left: int, start: I32 | None = None
    ) -> None:
        super().__init__(want, left, first=True, used={})
        self._table = table
        self._start = start  # None: the planned positions
        self.slot = slot

    @property
    def start(self) -> I32:
        return self._table.planned[self.slot] if self._start is None else self._start

    @property
    def known(self) -> I32:
        return self._table.known[self.slot]

    @property
    def limit(self) -> I32:
        return self._table.limit[self.slot]

    def ends(self, states: States) -> I32:
        return states.ends(self.slot, self.start)

    def sequence(self, row: int) -> Sequence:
        return self._table.sequence(int(self.slot[row]))

    def rest_of(self, row: int) -> int:
        return int(self._table.remaining(self.slot[row : row + 1])[0])


class ArrivalRow(WantedRows):
    """The row of a sequence that joins in this step."""

    __slots__ = ("_sequence", "_start", "branch", "rest")

    arriving = True
    slot = NO_INDEX

    def __init__(
        self, sequence: Sequence, start: int, rest: int, left: int, first: bool, used: Used
    ) -> None:
        super().__init__(np.array([rest], np.int32), left, first, used)
        self._sequence = sequence
        self._start = start
        self.rest = rest  # positions that it wants without limits
        self.branch = 0  # position at which it must end, because a prefix branches there; 0: none

    @property
    def start(self) -> I32:
        return np.array([self._start], np.int32)

    @property
    def known(self) -> I32:
        return np.array([len(self._sequence.tokens)], np.int32)

    @property
    def limit(self) -> I32:
        return np.array([self._sequence.limit], np.int32)

    def ends(self, states: States) -> I32:
        given = len(self._sequence.tokens)
        return np.array([states.end(self._start, self.branch, given)], np.int32)

    def sequence(self, row: int) -> Sequence:
        return self._sequence

    def rest_of(self, row: int) -> int:
        return self.rest

    def again(self) -> "ArrivalRow":
        """A copy of the row before any limit clipped it."""
        row = ArrivalRow(self._sequence, self._start, self.rest, self.left, self.first, self.used)
        row.branch = self.branch
        return row
