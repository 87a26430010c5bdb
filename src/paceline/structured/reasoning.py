"""A grammar that holds the answer behind the reasoning of the model, and its markers."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from paceline.core.arrays import I32, frozen
from paceline.structured.backend import Grammar
from paceline.structured.token_table import TokenTable
from paceline.structured.tracked_matcher import TrackedMatcher

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
    """Whether a text may stand between the reasoning and the answer."""
    return len(text) <= MOST_BREAKS and not text.strip(b"\n")


class ReasoningPhase(Enum):
    """The part of the output: its start, the reasoning, the text behind it, the answer."""

    OPENING = 0
    INSIDE = 1
    BEHIND = 2
    ANSWER = 3


class ReasoningState(NamedTuple):
    """`seen` counts bytes: of the start marker, of the end marker, or of line breaks. The grammar
    of the answer has accepted `held` tokens: an output may begin like a marker and be the answer.
    """

    phase: ReasoningPhase
    seen: int = 0
    held: int = 0


FIRST_INSIDE = ReasoningState(ReasoningPhase.INSIDE)


class ReasoningMatcher(TrackedMatcher):
    """Any text up to the end of the reasoning, and then what the grammar allows. `_tokens` are
    accepted, and `_past` has the states before each, up to the first of the answer."""

    def __init__(self, markers: ReasoningMarkers, answer: TrackedMatcher) -> None:
        super().__init__(markers.table)
        self._markers, self._answer = markers, answer
        self._tokens: list[int] = []
        self._past: list[ReasoningState] = []
        self._state = ReasoningState(ReasoningPhase.OPENING) if markers.start else FIRST_INSIDE

    def _advance(self, token: int) -> bool:
        if self._state.phase is ReasoningPhase.ANSWER:
            accepted = self._answer.accept(token)
        else:
            accepted = self._move(token)
        if accepted:
            self._tokens.append(token)
        return accepted

    def _move(self, token: int) -> bool:
        """Advance by a token before the answer, or by the first one of the answer."""
        reached = self._next(token)
        if reached is not None:
            self._past.append(self._state)
            self._state = reached
        return reached is not None

    def _next(self, token: int) -> ReasoningState | None:
        """The state after a token; None if it is not allowed."""
        text = self._table.spelled[token]
        phase, seen, _ = self._state
        if phase is ReasoningPhase.OPENING:
            return self._opened(token, text)
        if phase is ReasoningPhase.INSIDE:
            matched, rest = self._markers.after(seen, text)
            if rest is None:
                return ReasoningState(ReasoningPhase.INSIDE, matched) if matched else FIRST_INSIDE
            is_end = is_break(rest)
            return ReasoningState(ReasoningPhase.BEHIND, len(rest)) if is_end else None
        if self._answer.accept(token):
            return ReasoningState(ReasoningPhase.ANSWER, 0, 1)
        breaks = seen + len(text)
        is_more = is_break(b"\n" * seen + text)
        return ReasoningState(ReasoningPhase.BEHIND, breaks) if is_more else None

    def _opened(self, token: int, text: bytes) -> ReasoningState | None:
        markers, (_, seen, held) = self._markers, self._state
        fits = markers.start.startswith(text, seen)
        if fits and seen + len(text) == len(markers.start):
            self._answer.rollback(held)
            return FIRST_INSIDE
        may_answer = held == len(self._past) and self._answer.accept(token)
        if not fits and not may_answer:
            return None
        phase = ReasoningPhase.OPENING if fits else ReasoningPhase.ANSWER
        return ReasoningState(phase, seen + len(text), held + may_answer)

    def _retreat(self, tokens: int) -> None:
        del self._tokens[-tokens:]
        left = len(self._tokens)
        if left >= len(self._past):
            self._answer.rollback(tokens)
            return
        further = left + tokens - len(self._past)  # of the answer, behind the first
        now = self._state.held + further
        self._state = self._past[left]
        del self._past[left:]
        self._answer.rollback(max(0, now - self._state.held))
        for token in self._tokens[now : self._state.held]:
            self._answer.accept(token)

    def _fill_text(self, mask: I32, at: int) -> None:
        row, (phase, seen, held) = mask[at], self._state
        if phase is ReasoningPhase.INSIDE:
            row[:] = self._markers.inside[seen]
            return
        if phase is ReasoningPhase.OPENING and held < len(self._past):
            row[:] = 0
        else:
            self._answer.fill(row)
        if phase is ReasoningPhase.OPENING:
            row |= self._markers.opening[seen]
        elif phase is ReasoningPhase.BEHIND:
            row |= self._markers.breaks[seen]

    def _complete(self) -> bool:
        phase, _, held = self._state
        if phase is ReasoningPhase.INSIDE:
            return False
        is_lost = phase is ReasoningPhase.OPENING and held < len(self._past)
        return not is_lost and self._answer.finished

    def _copy(self) -> "ReasoningMatcher":
        copy = ReasoningMatcher(self._markers, self._answer.fork())
        copy._tokens, copy._past = self._tokens.copy(), self._past.copy()
        copy._state = self._state
        return copy


class ReasoningGrammar:
    """See `backend.Grammar`."""

    def __init__(self, markers: ReasoningMarkers, answer: Grammar) -> None:
        self._markers, self._answer = markers, answer
        self.size_bytes = answer.size_bytes

    def matcher(self) -> ReasoningMatcher:
        answer = self._answer.matcher()
        assert isinstance(answer, TrackedMatcher), "all backends have such matchers"
        return ReasoningMatcher(self._markers, answer)
