"""Compiles a constraint and computes some masks, to learn what the grammar costs; and the messages
to the processes that do so."""

from dataclasses import dataclass
from time import thread_time

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly
from paceline.structured.backend import GrammarBackend, Matcher
from paceline.structured.token_table import TokenTable

STEPS = 32  # tokens of the random output whose masks are timed


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to the process: what its workers need."""

    spelled: tuple[bytes, ...]
    eos: tuple[int, ...]
    backends: tuple[str, ...]  # that workers will be asked for
    memory_bytes: int  # that one constraint may take
    fill_s: float  # processor time that a mask may take on average


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Load a backend and fork a worker, whose pipe follows. The answer is its process id, or what
    is wrong with the backend."""

    backend: str


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Kill a worker unless it has ended. The answer is its exit code: a signal, if negative."""

    pid: int


@dataclass(frozen=True, slots=True)
class GrammarTrial:
    """Try a constraint out. A worker answers with None or with what is wrong."""

    backend: str
    constraint: Constraint
    limit_s: float  # of processor time


def try_out(
    backend: GrammarBackend, table: TokenTable, constraint: Constraint, fill_s: float
) -> None:
    """Raise GrammarTooCostly if a mask takes more than `fill_s` of processor time on average."""
    matcher = backend.compile(constraint).matcher()
    mean_s = mean_fill_s(matcher, table)
    if mean_s > fill_s:
        raise GrammarTooCostly(
            f"the {constraint.kind} takes {mean_s * 1000:.1f} ms for each token, "
            f"more than {fill_s * 1000:g} ms"
        )


def mean_fill_s(matcher: Matcher, table: TokenTable, steps: int = STEPS) -> float:
    """The mean time of a mask along a random output, up to its end."""
    random = np.random.default_rng(0)
    row = np.zeros(table.words, np.int32)
    spent_s, fills = 0.0, 0
    for _ in range(steps):
        start = thread_time()
        matcher.fill(row)
        spent_s += thread_time() - start
        fills += 1
        bits = np.unpackbits((row & ~table.eos_row).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if not len(allowed) or not matcher.accept(int(random.choice(allowed))):
            break
    return spent_s / fills
