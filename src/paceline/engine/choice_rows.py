"""A row for each choice of the open requests, in columns that a delivery changes at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Generic, TypeVar

import numpy as np

from paceline.core.arrays import F64, I32, I64, Bool, Index
from paceline.engine.loop.messages import Delivery

# A handle is the number of a front end, the number of a use of its rows, and a row. Late tokens of
# a request that has ended have the handle of an earlier use, which no row has any more.
ROW_BITS = USE_BITS = 24
FRONT_END_SHIFT = ROW_BITS + USE_BITS
MOST_FRONT_ENDS = 2 ** (63 - FRONT_END_SHIFT)
ROW = 2**ROW_BITS - 1


PAGE = 64  # tokens
FIRST_PAGES = 256


class TokenPages:
    """Each row has a list of tokens, in pages; rows that are appended to at once cost one pass.

    A row is any number below `grow`. `take` returns the tokens of a row and leaves it empty.
    """

    def __init__(self) -> None:
        self._cells = np.empty(FIRST_PAGES * PAGE, np.int32)
        self._free = list(range(FIRST_PAGES - 1, -1, -1))
        # The cell of the next token of each row; where a page begins, the row needs another one.
        self._next = np.zeros(0, np.int64)
        self._pages: dict[int, list[int]] = {}  # of rows that have tokens, in order

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""
        self._next = extended(self._next, rows)

    def append(self, row: Index, ids: I32, count: I32) -> None:
        """Append the first `count[i]` tokens of `ids[i]` to `row[i]`. No row is listed twice."""
        if ids.shape[1] == 1 and count.all():
            self.append_one(row, ids[:, 0])
            return
        for column in range(int(count.max(initial=0))):
            has = count > column
            self.append_one(row[has], ids[has, column])

    def append_one(self, row: Index, ids: I32) -> None:
        """Append `ids[i]` to `row[i]`. No row is listed twice."""
        cell = self._next[row]
        offset = cell % PAGE
        if not offset.all():
            for one in row[offset == 0].tolist():
                self._add_page(one)
            cell = self._next[row]
        self._cells[cell] = ids
        self._next[row] = cell + 1

    def _add_page(self, row: int) -> None:
        if not self._free:
            pages = len(self._cells) // PAGE
            self._cells = extended(self._cells, 2 * pages * PAGE)
            self._free = list(range(2 * pages - 1, pages - 1, -1))
        page = self._free.pop()
        self._pages.setdefault(row, []).append(page)
        self._next[row] = page * PAGE

    def has_tokens(self, row: int) -> bool:
        return row in self._pages

    def read(self, row: int) -> list[int]:
        """The tokens of a row."""
        found: list[int] = []
        for page in (pages := self._pages.get(row, [])):
            found += self._cells[page * PAGE : (page + 1) * PAGE].tolist()
        if pages:
            end = (pages[-1] + 1) * PAGE
            del found[len(found) - (end - int(self._next[row])) :]
        return found

    def take(self, row: int) -> list[int]:
        """The tokens of a row, which has none after that."""
        if row not in self._pages:
            return []
        found = self.read(row)
        self._next[row] = 0
        self._free += self._pages.pop(row)
        return found


def extended(column: np.ndarray, size: int) -> np.ndarray:
    """A longer copy of a column; new cells are zero."""
    longer = np.zeros(size, column.dtype)
    longer[: len(column)] = column
    return longer


FIRST_ROWS = 64
CLOSED = -2  # the handle of a row that takes no tokens
NOBODY = -1  # the handle of requests of no front end; no row has it

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, eq=False)
class NewTokens:
    """The part of a delivery that belongs to open choices."""

    offset: Index  # rows of the delivery
    row: Index  # rows of the choices
    ids: I32
    count: I32

    def where(self, some: Bool) -> "NewTokens":
        """Those of some rows."""
        return NewTokens(self.offset[some], self.row[some], self.ids[some], self.count[some])

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

    In a steady decode, deliveries share one array of handles, as steps share their rows: each row
    has one token more. If the tokens of all these rows wait, and none of them has ended or got a
    reader, the next delivery is only added (`repeat`).
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
        self._latest: Delivery | None = None  # None: the next one cannot repeat it
        self._repeated = np.empty(0, np.int64)  # its rows
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
        """The choice takes no more tokens."""
        self.handle[row] = CLOSED
        self._settle()

    def undefer(self, row: int) -> None:
        """There is a reader of its tokens."""
        self.deferred[row] = False
        self._settle()

    def release(self, handle: int, width: int) -> None:
        """A request has ended; others may have its rows."""
        first, end = handle & ROW, (handle & ROW) + width
        self._settle()
        for row in range(first, end):
            self.tokens.take(row)
            self.handle[row] = CLOSED
            self.owners[row] = None
        self._free.setdefault(width, []).append(first)

    def new_tokens(self, delivery: Delivery) -> NewTokens:
        """The tokens of open choices."""
        self._settle()
        row = delivery.handle & ROW
        # A handle of no front end has a row that is not there: it is clipped, and does not match.
        known: Bool = self.handle.take(row, mode="clip") == delivery.handle
        known &= delivery.count > 0
        new = NewTokens(np.arange(len(row)), row, delivery.ids, delivery.count)
        return new if np.count_nonzero(known) == len(row) else new.where(known)

    def defer(self, delivery: Delivery, new: NewTokens) -> NewTokens:
        """Let new tokens wait where there is no reader. Returns the others."""
        deferred = self.deferred[new.row]
        waiting = np.count_nonzero(deferred)
        if not waiting:
            return new
        if waiting < len(deferred):
            later = new.where(deferred)
            self.tokens.append(later.row, later.ids, later.count)
            return new.where(~deferred)
        self.tokens.append(new.row, new.ids, new.count)
        if waiting == len(delivery.handle):
            self._latest, self._repeated = delivery, new.row
        return new.where(~deferred)

    def repeat(self, delivery: Delivery) -> float | None:
        """Let the tokens of a delivery wait that has the rows of the one before it. Returns the
        seconds since that one; None if it is another kind of delivery."""
        latest = self._latest
        if latest is None or delivery.handle is not latest.handle:
            return None
        self._latest = delivery
        self.tokens.append_one(self._repeated, delivery.ids[:, 0])
        return delivery.time - latest.time

    def _settle(self) -> None:
        """The next delivery is not like the latest."""
        if self._latest is not None:
            self.seen_at[self._repeated] = self._latest.time
            self._latest = None

    def owner(self, row: int) -> Owner:
        """The choice of a row that takes tokens."""
        owner = self.owners[row]
        assert owner is not None, f"row {row} is free"
        return owner
