"""Tokens of many choices, appended in columns."""

import numpy as np

from paceline.core.arrays import I32, Index

PAGE = 64  # tokens
FIRST_PAGES = 256


class TokenPages:
    """Each row has a list of tokens, in pages; rows that are appended to at once cost one pass.

    A row is any number below `grow`. `take` returns the tokens of a row and leaves it empty.
    """

    def __init__(self) -> None:
        self._cells = np.empty(FIRST_PAGES * PAGE, np.int32)
        self._free = list(range(FIRST_PAGES - 1, -1, -1))
        self._length = np.zeros(0, np.int64)  # tokens of each row
        self._begin = np.zeros(0, np.int64)  # where the last page of each row begins in `_cells`
        self._pages: dict[int, list[int]] = {}  # of rows that have tokens, in order

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""
        self._length = extended(self._length, rows)
        self._begin = extended(self._begin, rows)

    def append(self, row: Index, ids: I32, count: I32) -> None:
        """Append the first `count[i]` tokens of `ids[i]` to `row[i]`. No row is listed twice."""
        if ids.shape[1] == 1 and count.all():
            self._append_one(row, ids[:, 0])
            return
        for column in range(int(count.max(initial=0))):
            has = count > column
            self._append_one(row[has], ids[has, column])

    def _append_one(self, row: Index, ids: I32) -> None:
        length = self._length[row]
        offset = length % PAGE
        if not offset.all():
            for one in row[offset == 0].tolist():
                self._add_page(one)
        self._cells[self._begin[row] + offset] = ids
        self._length[row] = length + 1

    def _add_page(self, row: int) -> None:
        if not self._free:
            pages = len(self._cells) // PAGE
            self._cells = extended(self._cells, 2 * pages * PAGE)
            self._free = list(range(2 * pages - 1, pages - 1, -1))
        page = self._free.pop()
        self._pages.setdefault(row, []).append(page)
        self._begin[row] = page * PAGE

    def has_tokens(self, row: int) -> bool:
        return row in self._pages

    def read(self, row: int) -> list[int]:
        """The tokens of a row."""
        found: list[int] = []
        for page in self._pages.get(row, ()):
            found += self._cells[page * PAGE : (page + 1) * PAGE].tolist()
        del found[int(self._length[row]) :]
        return found

    def take(self, row: int) -> list[int]:
        """The tokens of a row, which has none after that."""
        if row not in self._pages:
            return []
        found = self.read(row)
        self._length[row] = 0
        self._free += self._pages.pop(row)
        return found


def extended(column: np.ndarray, size: int) -> np.ndarray:
    """A longer copy of a column; new cells are zero."""
    longer = np.zeros(size, column.dtype)
    longer[: len(column)] = column
    return longer
