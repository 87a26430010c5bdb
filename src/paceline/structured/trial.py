"""Compiles a constraint and computes some masks, to learn what the grammar costs."""

from time import thread_time

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly
from paceline.structured.backend import GrammarBackend, Matcher
from paceline.structured.token_table import TokenTable

STEPS = 32  # tokens of the random output whose masks are timed


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
