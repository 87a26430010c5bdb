"""Guards that forbid tokens in addition to a grammar: banned sequences and a reasoning budget."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.core.arrays import I32
from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import Grammar, Matcher
from paceline.structured.reasoning import ReasoningMarkers, ReasoningPhase
from paceline.structured.token_table import TokenTable
from paceline.structured.tracked_matcher import EVERY, SteppingMatcher

TABLE_BYTES, TOKEN_BYTES = 4096, 64  # of a guard and of its banned tokens, about


class TextMatcher:
    """Any output, special tokens included, up to an end token. See `backend.Matcher`."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._ended = False

    def accept(self, token: int) -> bool:
        if self._ended or not 0 <= token < self._table.vocab_size:
            return False
        self._ended = token in self._table.eos
        return True

    def rollback(self, tokens: int) -> None:
        self._ended = self._ended and not tokens

    def fill(self, row: I32) -> None:
        row[:] = self._table.eos_row if self._ended else EVERY

    def fork(self) -> "TextMatcher":
        copy = TextMatcher(self._table)
        copy._ended = self._ended
        return copy

    @property
    def finished(self) -> bool:
        return True

    @property
    def terminated(self) -> bool:
        return self._ended


class BannedSequences:
    """Forbids the last token of a sequence behind the others. `_last` has the last tokens by those
    before them, and `_lengths` how many these are."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._last: dict[tuple[int, ...], list[int]] = {}
        for *before, last in sequences:
            self._last.setdefault(tuple(before), []).append(last)
        self._lengths = sorted({len(before) for before in self._last})

    def forbidden(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may not follow."""
        found: list[int] = []
        for length in self._lengths:
            if length > len(tokens):
                break
            found += self._last.get(tuple(tokens[len(tokens) - length :]), ())
        return found


class ReasoningBudget:
    """Ends the reasoning after `most` tokens: `forced` has the tokens of the end marker."""

    def __init__(self, markers: ReasoningMarkers, most: int) -> None:
        encode = markers.table.encode
        assert encode is not None, "the tokenizer of a model encodes texts"
        self.markers, self.most = markers, most
        self.forced = encode(markers.end.decode())

    def state(self) -> "BudgetState":
        return BudgetState(self)


class BudgetStep(NamedTuple):
    """`seen` bytes are there: of the start marker at the start, of the end marker inside. `spent`
    counts the tokens inside, those of the end marker included."""

    phase: ReasoningPhase
    seen: int = 0
    spent: int = 0


FIRST_INSIDE = BudgetStep(ReasoningPhase.INSIDE)
ANSWER = BudgetStep(ReasoningPhase.ANSWER)


class BudgetState:
    """How far an output has come in its reasoning: `_steps[n]` is where it is after n tokens."""

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        opens = bool(budget.markers.start)
        self._steps = [BudgetStep(ReasoningPhase.OPENING) if opens else FIRST_INSIDE]

    def advance(self, token: int) -> None:
        self._steps.append(self._after(token))

    def _after(self, token: int) -> BudgetStep:
        markers, (phase, seen, spent) = self._budget.markers, self._steps[-1]
        if phase is ReasoningPhase.ANSWER:
            return ANSWER
        text = markers.table.spelled[token]
        if phase is ReasoningPhase.OPENING:
            found = markers.start[:seen] + (text if seen else text.lstrip())
            if found.startswith(markers.start):
                return FIRST_INSIDE
            return BudgetStep(phase, len(found)) if markers.start.startswith(found) else ANSWER
        matched, rest = markers.after(seen, text)
        return BudgetStep(phase, matched, spent + 1) if rest is None else ANSWER

    def retreat(self, tokens: int) -> None:
        del self._steps[len(self._steps) - tokens :]

    def forced(self, tokens: Sequence[int]) -> int | None:
        """The only token that may follow; None if there is no such."""
        phase, _, spent = self._steps[-1]
        beyond = spent - self._budget.most
        if phase is not ReasoningPhase.INSIDE or beyond < 0:
            return None
        marker = self._budget.forced
        there = min(beyond, len(marker) - 1)
        while there and list(tokens[len(tokens) - there :]) != marker[:there]:
            there -= 1
        return marker[there]

    def fork(self) -> "BudgetState":
        copy = BudgetState(self._budget)
        copy._steps = self._steps.copy()
        return copy


class GuardedMatcher(SteppingMatcher):
    """What the matcher inside it allows, without what its guards forbid. `_tokens` are accepted.
    See `backend.Matcher`."""

    def __init__(
        self, inner: Matcher | TextMatcher, banned: BannedSequences, budget: BudgetState | None
    ) -> None:
        self._inner, self._banned, self._budget = inner, banned, budget
        self._tokens: list[int] = []

    def accept(self, token: int) -> bool:
        forced = self._forced()
        wrong = token in self._banned.forbidden(self._tokens) if forced is None else token != forced
        if wrong or not self._inner.accept(token):
            return False
        self._tokens.append(token)
        if self._budget is not None:
            self._budget.advance(token)
        return True

    def _forced(self) -> int | None:
        """The budget comes before what is banned: the reasoning has to end."""
        return self._budget and self._budget.forced(self._tokens)

    def rollback(self, tokens: int) -> None:
        if not tokens:
            return
        del self._tokens[len(self._tokens) - tokens :]
        self._inner.rollback(tokens)
        if self._budget is not None:
            self._budget.retreat(tokens)

    def fill(self, row: I32) -> None:
        self._inner.fill(row)
        if self._inner.terminated:
            return
        forced = self._forced()
        if forced is not None:
            row[:] = 0
            row.view(np.uint32)[forced >> 5] = np.uint32(1 << (forced & 31))
            return
        for token in self._banned.forbidden(self._tokens):
            row.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        if not np.count_nonzero(row):
            raise RequestError(
                "bad_words forbids every token that the grammar allows here; remove bad_words, or "
                "change the constraint"
            )

    def fork(self) -> "GuardedMatcher":
        budget = self._budget and self._budget.fork()
        copy = GuardedMatcher(self._inner.fork(), self._banned, budget)
        copy._tokens = self._tokens.copy()
        return copy

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def terminated(self) -> bool:
        return self._inner.terminated


class GuardedGrammar:
    """A grammar, or any text, with guards. See `backend.Grammar`."""

    def __init__(
        self,
        table: TokenTable,
        constraint: Constraint,
        inner: Grammar | None,
        markers: ReasoningMarkers | None,
    ) -> None:
        """`inner` is None for any text, `markers` without a budget."""
        most = constraint.reasoning_tokens
        self._table, self._inner = table, inner
        self._banned = BannedSequences(constraint.banned)
        self._budget = ReasoningBudget(markers, most) if markers and most is not None else None
        own = TABLE_BYTES + TOKEN_BYTES * sum(map(len, constraint.banned))
        self.size_bytes = own + (inner.size_bytes if inner else 0)

    def matcher(self) -> Matcher:
        inner = self._inner.matcher() if self._inner else TextMatcher(self._table)
        return GuardedMatcher(inner, self._banned, self._budget and self._budget.state())
