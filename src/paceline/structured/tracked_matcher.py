"""The part of matchers that does not depend on the library."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.errors import RequestError
from paceline.structured.backend import Matcher, MatcherGroup
from paceline.structured.token_table import TokenTable

EVERY = -1  # a word of a mask that allows all of its tokens


class SteppingMatcher(ABC):
    """Operations of matchers that accept, take back and fill one token at a time. See
    `backend.Matcher`."""

    @abstractmethod
    def accept(self, token: int) -> bool: ...

    @abstractmethod
    def rollback(self, tokens: int) -> None: ...

    @abstractmethod
    def fill(self, row: I32) -> None: ...

    def try_tokens(self, tokens: Sequence[int]) -> int:
        count = 0
        for token in tokens:
            if not self.accept(token):
                break
            count += 1
        self.rollback(count)
        return count

    def fill_rows(self, mask: I32, drafts: Sequence[int]) -> int:
        self.fill(mask[0])
        count = 0
        for token in drafts:
            if not self.accept(token):
                break
            count += 1
            self.fill(mask[count])
        self.rollback(count)
        mask[count + 1 : len(drafts) + 1] = EVERY
        return count

    @classmethod
    def group(cls, matchers: Sequence[Any]) -> MatcherGroup:
        return OneByOne(matchers)


class TrackedMatcher(SteppingMatcher):
    """See `backend.Matcher`. It handles the end tokens itself: the library sees text only."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._ended = False

    # -- of the library -----------------------------------------------------

    @abstractmethod
    def _advance(self, token: int) -> bool:
        """Accept a token with bytes; False, and nothing changes, if it is not allowed."""

    @abstractmethod
    def _retreat(self, tokens: int) -> None: ...

    @abstractmethod
    def _fill_text(self, mask: I32, at: int) -> None:
        """Write to one row which tokens with bytes are allowed. Bits of end tokens are right, or
        zero; all other bits are zero."""

    @abstractmethod
    def _complete(self) -> bool: ...

    @abstractmethod
    def _copy(self) -> "TrackedMatcher":
        """A copy at the same position of the text."""

    # -- of the port --------------------------------------------------------

    def accept(self, token: int) -> bool:
        table = self._table
        if self._ended or not 0 <= token < table.vocab_size:
            return False
        if token in table.eos:
            self._ended = self._complete()
            return self._ended
        return bool(table.spelled[token]) and self._advance(token)

    def rollback(self, tokens: int) -> None:
        if not tokens:
            return
        text = tokens - self._ended
        self._ended = False
        if text:
            self._retreat(text)

    def fill(self, row: I32) -> None:
        self._fill(row[None], 0)

    def _fill(self, mask: I32, at: int) -> None:
        table, row = self._table, mask[at]
        if self._ended:
            row[:] = table.eos_row
            return
        self._fill_text(mask, at)
        if self._complete():
            row |= table.eos_row
        elif not np.count_nonzero(row):
            raise RequestError("the grammar allows no token of this model's vocabulary here")

    def fork(self) -> "TrackedMatcher":
        copy = self._copy()
        copy._ended = self._ended
        return copy

    @property
    def finished(self) -> bool:
        return self._ended or self._complete()

    @property
    def terminated(self) -> bool:
        return self._ended


class OneByOne:
    """A group of matchers whose library has no calls for several. See `backend.MatcherGroup`."""

    def __init__(self, matchers: Sequence[SteppingMatcher]) -> None:
        self._matchers = matchers

    def accept(self, tokens: Sequence[int]) -> dict[int, str]:
        wrong: dict[int, str] = {}
        for index, (matcher, token) in enumerate(zip(self._matchers, tokens, strict=True)):
            try:
                if not matcher.accept(token):
                    wrong[index] = refusal(token)
            except RequestError as error:
                wrong[index] = str(error)
        return wrong

    def fill(self, mask: I32, at: Sequence[int]) -> dict[int, str]:
        wrong: dict[int, str] = {}
        for index, (matcher, row) in enumerate(zip(self._matchers, at, strict=True)):
            try:
                matcher.fill(mask[row])
            except RequestError as error:
                wrong[index] = str(error)
        return wrong


def refusal(token: int) -> str:
    return f"the constraint does not allow token {token}"


class MatcherBatch:
    """Matchers by their class, with one call for each class. See `backend.MatcherGroup`."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        kinds: dict[type[Matcher], None] = dict.fromkeys(map(type, matchers))
        self._groups: list[tuple[Index, MatcherGroup]] = []
        for kind in kinds:
            indices = [index for index, one in enumerate(matchers) if type(one) is kind]
            group = kind.group([matchers[index] for index in indices])
            self._groups.append((np.array(indices, np.intp), group))

    def accept(self, tokens: I32) -> dict[int, str]:
        if len(self._groups) == 1:
            return self._groups[0][1].accept(tokens.tolist())
        return by_index(
            (indices, group.accept(tokens[indices].tolist())) for indices, group in self._groups
        )

    def fill(self, mask: I32, at: Index) -> dict[int, str]:
        if len(self._groups) == 1:
            return self._groups[0][1].fill(mask, at.tolist())
        return by_index(
            (indices, group.fill(mask, at[indices].tolist())) for indices, group in self._groups
        )


def by_index(found: Iterable[tuple[Index, dict[int, str]]]) -> dict[int, str]:
    """Errors by index in the batch, from errors by index in each group."""
    return {int(indices[index]): text for indices, wrong in found for index, text in wrong.items()}
