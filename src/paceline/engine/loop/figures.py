"""Counts of steps, and the answer of an engine to "gauges"."""

from asyncio import timeout
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from paceline.core.plan import Plan, Rows, StepResult
from paceline.engine.loop.messages import Capacity, EngineFailed, Verb
from paceline.engine.report import Histogram
from paceline.sched.stats import Stats
from paceline.structured.compile_queue import GrammarCounts

TOKENS_PER_STEP = (1.0, 8.0, *(float(2**power) for power in range(4, 15)))


class StepCounts:
    """Counters that only grow, and how long the latest turn took."""

    def __init__(self) -> None:
        self.turn_s = 0.0
        self.tokens = Histogram(TOKENS_PER_STEP)
        self._undrafted: Rows | None = None  # the latest rows, if each computed one position
        self.drafts = 0  # rows that had drafts to verify
        self.accepted_at: Counter[int] = Counter()  # accepted drafts, by position

    def landed(self, plan: Plan, result: StepResult) -> None:
        if plan.rows is self._undrafted:  # a steady decode repeats its rows
            self.tokens.observe(len(plan.rows))
            return
        drafts = result.drafts_of(plan.rows)
        self.tokens.observe(plan.total - int(plan.rows.drafts.sum()) + int(drafts.sum()))
        drafted = drafts > 0
        if not drafted.any():
            one_each = plan.total == len(plan.rows)
            self._undrafted = plan.rows if one_each and not plan.rows.drafts.any() else None
            return
        self.drafts += int(drafted.sum())
        right = result.count[drafted] - 1  # the last token of a row is not a draft
        for place in range(int(right.max(initial=0))):
            self.accepted_at[place] += int(np.count_nonzero(right > place))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        places = range(max(self.accepted_at, default=-1) + 1)
        return {
            "step_tokens": [*self.tokens.counts, self.tokens.total],
            "drafts": self.drafts,
            "accepted_at": [self.accepted_at[place] for place in places],
        }


WAITING_FOR_GRAMMAR = "waiting_for_grammar"
NO_REQUESTS: dict[str, Any] = dict.fromkeys(
    (
        *("running", "waiting", "parked", "swapped", "kv_usage", "drafting_paused", "pid"),
        WAITING_FOR_GRAMMAR,
    ),
    0,
)


def first_figures(capacity: Capacity) -> dict[str, Any]:
    """The answer to "gauges" of an engine without any request so far."""
    size = {
        "total_blocks": capacity.num_blocks,
        "block_size": capacity.block_size,
        "enable_prefix_caching": capacity.enable_prefix_caching,
    }
    totals = Stats().to_dict() | asdict(GrammarCounts()) | StepCounts().to_dict()
    return NO_REQUESTS | totals | size


STATS_S = 2.0  # to wait for figures; then the previous ones count


class EngineFigures:
    """The latest answer of each engine to "gauges"."""

    def __init__(self, ask: Callable[[Verb, str], Awaitable[Any]], capacity: Capacity) -> None:
        self._ask = ask
        self._latest = [first_figures(capacity)] * capacity.engines

    async def of(self, engine: int) -> dict[str, Any]:
        """The figures of an engine; the latest known ones if it does not answer."""
        try:
            async with timeout(STATS_S):
                self._latest[engine] = await self._ask("gauges", str(engine))
        except TimeoutError:
            pass
        except EngineFailed:
            self._latest[engine] = self._latest[engine] | NO_REQUESTS
        return self._latest[engine]
