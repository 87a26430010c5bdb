"""Several matchers of xgrammar in one call."""

from collections.abc import Sequence
from functools import cache
from time import perf_counter
from typing import Any

from paceline.core.arrays import I32
from paceline.core.cores import usable_cores
from paceline.structured.tracked_matcher import refusal
from paceline.structured.xgrammar_binding import BatchGrammarMatcher, shared_array

MOST_THREADS = 8
WORTH_S = 200e-6  # masks that one thread fills in less time are not worth waking others
EVERY = -1  # a word in which all bits stand for ids
AGAIN = 32  # calls after which one thread is timed again


class XGrammarGroup:
    """See `backend.MatcherGroup`. The library sets the bits of end tokens itself."""

    def __init__(self, handles: Sequence[Any], last_word: Any) -> None:
        self._handles, self._last_word = shared_array(handles), last_word
        self._all_accepted = shared_array([1] * len(handles))

    def accept(self, tokens: Sequence[int]) -> dict[int, str]:
        found = BatchGrammarMatcher.batch_accept_token(self._handles, tokens, False)
        if found == self._all_accepted:  # reading it takes longer than accepting
            return {}
        return {at: refusal(tokens[at]) for at, accepted in enumerate(found) if not accepted}

    def fill(self, mask: I32, at: Sequence[int]) -> dict[int, str]:
        filler().fill(self._handles, mask, at)
        if self._last_word != EVERY:
            mask[at, -1] &= self._last_word  # the bits after the last id are as they were
        return {}


class Filler:
    """Fills masks on the caller's thread, or on several if that has been taking long."""

    def __init__(self, threads: int) -> None:
        self._alone = BatchGrammarMatcher(1)
        self._together = BatchGrammarMatcher(threads) if threads > 1 else None
        self._mask_s = 0.0  # of one thread, by the latest timing
        self._calls = 0  # since then

    def fill(self, handles: Any, mask: I32, at: Sequence[int]) -> None:
        is_long = len(at) * self._mask_s > WORTH_S
        if self._together is not None and is_long and self._calls < AGAIN:
            self._calls += 1
            self._together.batch_fill_next_token_bitmask(handles, mask, at, False)
            return
        begin = perf_counter()
        self._alone.batch_fill_next_token_bitmask(handles, mask, at, False)
        self._mask_s, self._calls = (perf_counter() - begin) / len(at), 0


@cache
def filler() -> Filler:
    return Filler(min(usable_cores() // 2, MOST_THREADS))
