"""The grammars that were used last."""

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from time import monotonic

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, RequestError
from paceline.structured.backend import Grammar

REFUSAL_BYTES = 1024


class GrammarCache:
    """At most so many grammars, and so many bytes of them. Refusals are kept too, so that a client
    that repeats a constraint compiles nothing: those for its cost only for some seconds, since they
    depend on the machine. One thread at a time may use it."""

    def __init__(
        self,
        grammars: int,
        size_bytes: int,
        costly_s: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._grammars, self._limit_bytes = grammars, size_bytes
        self._costly_s, self._clock = costly_s, clock
        self._kept: OrderedDict[Constraint, Grammar | RequestError] = OrderedDict()
        self._until_s: dict[Constraint, float] = {}  # when refusals for cost are forgotten
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, constraint: Constraint) -> Grammar | RequestError | None:
        if self._clock() >= self._until_s.get(constraint, inf):
            self._drop(constraint)
        if constraint in self._kept:
            self._kept.move_to_end(constraint)
        return self._kept.get(constraint)

    def put(self, constraint: Constraint, outcome: Grammar | RequestError) -> None:
        """Drops those that were not used for longest. One that is larger than all is not kept."""
        self._drop(constraint)
        size_bytes = size_of(constraint, outcome)
        if size_bytes > self._limit_bytes or not self._grammars:
            return
        self._kept[constraint] = outcome
        self.size_bytes += size_bytes
        if isinstance(outcome, GrammarTooCostly):
            self._until_s[constraint] = self._clock() + self._costly_s
        while len(self._kept) > self._grammars or self.size_bytes > self._limit_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, constraint: Constraint) -> None:
        self._until_s.pop(constraint, None)
        if (outcome := self._kept.pop(constraint, None)) is not None:
            self.size_bytes -= size_of(constraint, outcome)


def size_of(constraint: Constraint, outcome: Grammar | RequestError) -> int:
    own = REFUSAL_BYTES if isinstance(outcome, RequestError) else outcome.size_bytes
    return own + len(constraint.text)
