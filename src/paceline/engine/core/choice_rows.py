"""A row for each choice of the open requests, in columns that a delivery changes at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Generic, TypeVar

import numpy as np

from paceline.core.arrays import F64, I32, I64, Bool, Index
from paceline.engine.core.handles import FRONT_END_SHIFT, ROW, ROW_BITS, USE_BITS
from paceline.engine.core.messages import Delivery
from paceline.engine.core.token_pages import TokenPages, extended

FIRST_ROWS = 64
CLOSED = -2  # the handle of a row that takes no tokens
NOBODY = -1  # the handle of requests of no front end; no row has it

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, eq=False)
class NewTokens:
    """The part of a delivery that belongs to open choices."""

    place: Index  # rows of the delivery
    row: Index  # rows of the choices
    ids: I32
    count: I32

    def where(self, some: Bool) -> "NewTokens":
        """Those of some rows."""
        return NewTokens(self.place[some], self.row[some], self.ids[some], self.count[some])

    @property
    def total(self) -> int:
        """The number of tokens; every row has at least one."""
        return len(self.row) if self.ids.shape[1] == 1 else int(self.count.sum())


class ChoiceRows(Generic[Owner]):
    """Consecutive rows belong to the sequences of one request. Free rows are used again for
    requests of the same width, so there are as many as were open at once, for each width.

    handle     what the engine calls the row's choice, or CLOSED
    seen_at    the time of its latest tokens; nan before the first
    deferred   do its tokens wait in `tokens` until its end, or until there is a reader?
    """

    def __init__(self, front_end: int = 0) -> None:
        self._front_end = front_end
        self._uses = 0
        self._free: dict[int, list[int]] = {}  # the first of consecutive free rows, by their number
        self._used = 0  # all rows from here on were never used
        self.handle: I64 = np.empty(0, np.int64)
        self.seen_at: F64 = np.empty(0)
        self.deferred: Bool = np.empty(0, np.bool_)
        self.owners: list[Owner | None] = []
        self.tokens = TokenPages()
        self._grow(FIRST_ROWS)

    def next_handle(self, width: int) -> int:
        """The handle that the next request of `width` sequences gets."""
        free = self._free.get(width)
        first = free[-1] if free else self._used
        return self._front_end << FRONT_END_SHIFT | self._uses << ROW_BITS | first

    def open(self, owners: Sequence[Owner], handle: int, width: int, deferred: bool) -> None:
        """Give `next_handle` to a request: a row for each of its `width` sequences. The first ones
        have owners; the others are never reported."""
        assert handle == self.next_handle(width)
        first, end = handle & ROW, (handle & ROW) + width
        if free := self._free.get(width):
            free.pop()
        else:
            self._used = end
            if end > len(self.handle):
                self._grow(max(end, 2 * len(self.handle)))
        self._uses = (self._uses + 1) % 2**USE_BITS
        for child in range(width):
            row = first + child
            self.handle[row] = handle + child
            self.seen_at[row] = nan
            self.deferred[row] = deferred
            self.owners[row] = owners[child] if child < len(owners) else None

    def _grow(self, rows: int) -> None:
        before = len(self.handle)
        self.handle = extended(self.handle, rows)
        self.handle[before:] = CLOSED
        self.seen_at = extended(self.seen_at, rows)
        self.deferred = extended(self.deferred, rows)
        self.owners += [None] * (rows - before)
        self.tokens.grow(rows)

    def end(self, row: int) -> None:
        """The choice takes no further tokens."""
        self.handle[row] = CLOSED

    def release(self, handle: int, width: int) -> None:
        """A request has ended; others may have its rows."""
        first, end = handle & ROW, (handle & ROW) + width
        for row in range(first, end):
            self.tokens.take(row)
            self.handle[row] = CLOSED
            self.owners[row] = None
        self._free.setdefault(width, []).append(first)

    def new_tokens(self, delivery: Delivery) -> NewTokens:
        """The tokens of open choices."""
        row = delivery.handle & ROW
        # A handle of no front end has a row that is not there: it is clipped, and does not match.
        known: Bool = self.handle.take(row, mode="clip") == delivery.handle
        known &= delivery.count > 0
        new = NewTokens(np.arange(len(row)), row, delivery.ids, delivery.count)
        return new if np.count_nonzero(known) == len(row) else new.where(known)

    def owner(self, row: int) -> Owner:
        """The choice of a row that takes tokens."""
        owner = self.owners[row]
        assert owner is not None, f"row {row} is free"
        return owner
