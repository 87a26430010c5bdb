"""A grammar that holds the answer, behind the reasoning of the model."""

from enum import Enum
from typing import NamedTuple

from paceline.core.arrays import I32
from paceline.structured.backend import Grammar
from paceline.structured.reasoning_markers import ReasoningMarkers, is_break
from paceline.structured.tracked_matcher import TrackedMatcher


class ReasoningPhase(Enum):
    """Where an output is: at its start, inside the reasoning, behind it, in the answer."""

    OPENING = 0
    INSIDE = 1
    BEHIND = 2
    ANSWER = 3


class ReasoningPlace(NamedTuple):
    """`seen` counts bytes: of the start marker, of the end marker, or of line breaks. The grammar
    of the answer has accepted `held` tokens: an output may begin like a marker and be the answer.
    """

    phase: ReasoningPhase
    seen: int = 0
    held: int = 0


FIRST_INSIDE = ReasoningPlace(ReasoningPhase.INSIDE)


class ReasoningMatcher(TrackedMatcher):
    """Any text up to the end of the reasoning, and then what the grammar allows. `_tokens` are
    accepted, and `_past` has the places before each, up to the first of the answer."""

    def __init__(self, markers: ReasoningMarkers, answer: TrackedMatcher) -> None:
        super().__init__(markers.table)
        self._markers, self._answer = markers, answer
        self._tokens: list[int] = []
        self._past: list[ReasoningPlace] = []
        self._place = ReasoningPlace(ReasoningPhase.OPENING) if markers.start else FIRST_INSIDE

    def _advance(self, token: int) -> bool:
        if self._place.phase is ReasoningPhase.ANSWER:
            accepted = self._answer.accept(token)
        else:
            accepted = self._move(token)
        if accepted:
            self._tokens.append(token)
        return accepted

    def _move(self, token: int) -> bool:
        """Advance by a token that is not the answer's, or is its first."""
        reached = self._next(token)
        if reached is not None:
            self._past.append(self._place)
            self._place = reached
        return reached is not None

    def _next(self, token: int) -> ReasoningPlace | None:
        """The place after a token; None if it is not allowed."""
        text = self._table.spelled[token]
        phase, seen, _ = self._place
        if phase is ReasoningPhase.OPENING:
            return self._opened(token, text)
        if phase is ReasoningPhase.INSIDE:
            matched, rest = self._markers.after(seen, text)
            if rest is None:
                return ReasoningPlace(ReasoningPhase.INSIDE, matched) if matched else FIRST_INSIDE
            is_end = is_break(rest)
            return ReasoningPlace(ReasoningPhase.BEHIND, len(rest)) if is_end else None
        if self._answer.accept(token):
            return ReasoningPlace(ReasoningPhase.ANSWER, 0, 1)
        breaks = seen + len(text)
        is_more = is_break(b"\n" * seen + text)
        return ReasoningPlace(ReasoningPhase.BEHIND, breaks) if is_more else None

    def _opened(self, token: int, text: bytes) -> ReasoningPlace | None:
        markers, (_, seen, held) = self._markers, self._place
        fits = markers.start.startswith(text, seen)
        if fits and seen + len(text) == len(markers.start):
            self._answer.rollback(held)
            return FIRST_INSIDE
        may_answer = held == len(self._past) and self._answer.accept(token)
        if not fits and not may_answer:
            return None
        phase = ReasoningPhase.OPENING if fits else ReasoningPhase.ANSWER
        return ReasoningPlace(phase, seen + len(text), held + may_answer)

    def _retreat(self, tokens: int) -> None:
        del self._tokens[-tokens:]
        left = len(self._tokens)
        if left >= len(self._past):
            self._answer.rollback(tokens)
            return
        further = left + tokens - len(self._past)  # of the answer, behind the first
        now = self._place.held + further
        self._place = self._past[left]
        del self._past[left:]
        self._answer.rollback(max(0, now - self._place.held))
        for token in self._tokens[now : self._place.held]:
            self._answer.accept(token)

    def _fill_text(self, mask: I32, at: int) -> None:
        row, (phase, seen, held) = mask[at], self._place
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
        phase, _, held = self._place
        if phase is ReasoningPhase.INSIDE:
            return False
        is_lost = phase is ReasoningPhase.OPENING and held < len(self._past)
        return not is_lost and self._answer.finished

    def _copy(self) -> "ReasoningMatcher":
        copy = ReasoningMatcher(self._markers, self._answer.fork())
        copy._tokens, copy._past = self._tokens.copy(), self._past.copy()
        copy._place = self._place
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
