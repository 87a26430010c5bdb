"""The grammars that were used last."""

from collections import OrderedDict

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import Grammar

REFUSAL_BYTES = 1024


class GrammarCache:
    """At most so many grammars, and so many bytes of them. Refusals are kept too, so that a client
    that repeats a malformed constraint compiles nothing. One thread at a time may use it."""

    def __init__(self, grammars: int, size_bytes: int) -> None:
        self._grammars, self._limit_bytes = grammars, size_bytes
        self._kept: OrderedDict[Constraint, Grammar | RequestError] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, constraint: Constraint) -> Grammar | RequestError | None:
        if constraint in self._kept:
            self._kept.move_to_end(constraint)
        return self._kept.get(constraint)

    def put(self, constraint: Constraint, outcome: Grammar | RequestError) -> None:
        """Drops those that were not used for longest. One that is larger than all is not kept."""
        if (before := self._kept.pop(constraint, None)) is not None:
            self.size_bytes -= size_of(constraint, before)
        size_bytes = size_of(constraint, outcome)
        if size_bytes > self._limit_bytes or not self._grammars:
            return
        self._kept[constraint] = outcome
        self.size_bytes += size_bytes
        while len(self._kept) > self._grammars or self.size_bytes > self._limit_bytes:
            self.size_bytes -= size_of(*self._kept.popitem(last=False))


def size_of(constraint: Constraint, outcome: Grammar | RequestError) -> int:
    own = REFUSAL_BYTES if isinstance(outcome, RequestError) else outcome.size_bytes
    return own + len(constraint.text)
