"""Which constraint is compiled next, what was compiled, and how many of each kind."""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, RequestError
from paceline.structured.backend import Grammar


@dataclass(slots=True)
class GrammarCounts:
    """What a compiler has done since its start."""

    grammars_compiled: int = 0
    grammars_refused: int = 0  # malformed, not supported, or too costly
    grammar_cache_hits: int = 0  # constraints whose grammar or refusal was kept
    grammar_compile_s: float = 0.0  # seconds, of refused ones too


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
    size_bytes = REFUSAL_BYTES if isinstance(outcome, RequestError) else outcome.size_bytes
    return size_bytes + len(constraint.text)


OLDEST_EACH = 4  # of so many turns of a client one goes to its oldest constraint
MOST_COST = 1e18
# Bounds of repetitions: `{3}`, `{,3}` and `{1,3}` in patterns and grammars; keywords of schemas.
REPEATED = re.compile(r"\{(?:\d*,)?(\d+)\}")
COUNTED = re.compile(r'"(?:max|min)(?:Length|Items|Properties)":(\d+)')

Job = TypeVar("Job")


@dataclass(slots=True)
class Waiting(Generic[Job]):
    """The jobs of one client, with their costs, in the order of their arrival."""

    jobs: dict[Job, float] = field(default_factory=dict[Job, float])
    turns: int = 0

    def pop(self) -> Job:
        self.turns += 1
        is_oldest = self.turns % OLDEST_EACH == 0
        job = next(iter(self.jobs)) if is_oldest else min(self.jobs, key=self.jobs.__getitem__)
        del self.jobs[job]
        return job


class CompileQueue(Generic[Job]):
    """Clients take turns. Of one client's jobs the cheapest is next, but each fourth time its
    oldest, so that none waits for ever. A job may wait for several clients, and is taken once.

    One thread at a time may use it.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, Waiting[Job]] = OrderedDict()

    def put(self, client: str, job: Job, cost: float) -> None:
        self._clients.setdefault(client, Waiting()).jobs.setdefault(job, cost)

    def take(self) -> Job | None:
        """The next job; None if none waits."""
        if not self._clients:
            return None
        client, waiting = next(iter(self._clients.items()))
        job = waiting.pop()
        self._clients.move_to_end(client)
        self.remove(job)
        return job

    def remove(self, job: Job) -> None:
        for client, waiting in tuple(self._clients.items()):
            waiting.jobs.pop(job, None)
            if not waiting.jobs:
                del self._clients[client]


def likely_cost(constraint: Constraint) -> float:
    """How long compiling takes, roughly and without a unit: nested repetitions multiply, and those
    of a schema add up. Only the order of constraints that wait depends on it."""
    cost = float(len(constraint.text))
    for found in COUNTED.findall(constraint.text):
        cost += float(found[:9])
    for found in REPEATED.findall(constraint.text):
        cost = min(cost * max(float(found[:9]), 1.0), MOST_COST)
    return cost
