"""The tokens by which a model begins and ends its reasoning, as masks."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from paceline.core.arrays import I32, frozen
from paceline.structured.token_table import TokenTable

MOST_BREAKS = 2  # line breaks that a model may write between its reasoning and its answer


@dataclass(frozen=True, eq=False)
class ReasoningMarkers:
    """`start` may begin a block of reasoning, and `end` ends it. `start` is empty if the output
    begins inside the block.

    A marker may be a special token, an ordinary one, or several tokens. `table` has the spelling of
    special ones.
    """

    table: TokenTable
    start: bytes
    end: bytes

    @classmethod
    def of(cls, table: TokenTable, start: str, end: str) -> "ReasoningMarkers":
        spelled = list(table.spelled)
        for marker in filter(None, (start, end)):
            found = table.encode(marker) if table.encode is not None else []
            if len(found) == 1 and not spelled[found[0]]:
                spelled[found[0]] = marker.encode()
        made = cls(replace(table, spelled=tuple(spelled)), start.encode(), end.encode())
        _ = made.inside, made.opening, made.breaks, made.table.eos_row  # not within a step
        return made

    def after(self, matched: int, text: bytes) -> tuple[int, bytes | None]:
        """How many bytes of `end` are there after `text`, if `matched` were there before it. If
        the marker is complete, also what follows it."""
        seen = self.end[:matched] + text
        _, found, rest = seen.partition(self.end)
        if found:
            return 0, rest
        longest = min(len(seen), len(self.end) - 1)
        return next((n for n in range(longest, 0, -1) if seen.endswith(self.end[:n])), 0), None

    # -- masks ----------------------------------------------------------------

    @cached_property
    def inside(self) -> tuple[I32, ...]:
        """What may follow inside the block, by the number of bytes of `end` before it: every text,
        but no token that has a part of the answer."""  # [matched][words]
        spelled = self.table.spelled
        whole = [id for id, text in enumerate(spelled) if self.end in text]
        rows: list[I32] = []
        for matched in range(len(self.end)):
            ending = [(id, self.after(matched, spelled[id])[1]) for id in self._finishing(matched)]
            ending += [(id, self.after(matched, spelled[id])[1]) for id in whole]
            wrong = [id for id, rest in ending if rest is not None and not is_break(rest)]
            rows.append(frozen(self.table.text_row & ~self._row(wrong)))
        return tuple(rows)

    @cached_property
    def opening(self) -> tuple[I32, ...]:
        """The tokens that continue `start`, by the number of its bytes before them."""
        return tuple(
            self._row(
                id
                for end in range(matched + 1, len(self.start) + 1)
                for id in self._spelled_as(self.start[matched:end])
            )
            for matched in range(len(self.start))
        )

    @cached_property
    def breaks(self) -> tuple[I32, ...]:
        """The tokens that are line breaks, by how many were there before."""  # [before][words]
        tokens = [list(self._spelled_as(b"\n" * count)) for count in range(1, MOST_BREAKS + 1)]
        return tuple(
            self._row(id for few in tokens[: MOST_BREAKS - before] for id in few)
            for before in range(MOST_BREAKS + 1)
        )

    def _finishing(self, matched: int) -> list[int]:
        """Tokens that begin with the rest of `end`, after any part of it that may be there."""
        there = self.end[:matched]
        parts = [self.end[n:] for n in range(1, matched + 1) if there.endswith(self.end[:n])]
        return [id for part in parts for id in self._beginning_with(part)]

    def _beginning_with(self, text: bytes) -> Iterator[int]:
        at = bisect_left(self._in_order, (text, 0))
        while at < len(self._in_order) and self._in_order[at][0].startswith(text):
            yield self._in_order[at][1]
            at += 1

    def _spelled_as(self, text: bytes) -> Iterator[int]:
        for id in self._beginning_with(text):
            if self.table.spelled[id] != text:
                return
            yield id

    @cached_property
    def _in_order(self) -> list[tuple[bytes, int]]:
        return sorted((text, id) for id, text in enumerate(self.table.spelled) if text)

    def _row(self, ids: Iterable[int]) -> I32:
        row = np.zeros(self.table.words, np.uint32)
        for id in ids:
            row[id >> 5] |= np.uint32(1 << (id & 31))
        return frozen(row.view(np.int32))


def is_break(text: bytes) -> bool:
    """Whether it may stand between the reasoning and the answer."""
    return len(text) <= MOST_BREAKS and not text.strip(b"\n")
