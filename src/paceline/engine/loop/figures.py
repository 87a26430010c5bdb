"""Histograms, counts of steps, and the figures that `AsyncLLM` reports."""

from asyncio import timeout
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.plan import Plan, Rows, StepResult
from paceline.engine.loop.messages import Capacity, EngineFailed, Verb
from paceline.sched.stats import Stats
from paceline.structured.compile_queue import GrammarCounts

TOKENS_PER_STEP = (1.0, 8.0, *(float(2**power) for power in range(4, 15)))
WAITING_FOR_GRAMMAR = "waiting_for_grammar"
NO_REQUESTS: dict[str, Any] = dict.fromkeys(
    (
        *("running", "waiting", "parked", "swapped", "kv_usage", "drafting_paused", "pid"),
        WAITING_FOR_GRAMMAR,
    ),
    0,
)
STATS_S = 2.0  # to wait for figures; then the previous ones count


class Histogram:
    """`counts[i]` values lie in (bounds[i - 1], bounds[i]]; the last count has no upper bound.

    `cells` holds the counts, and after them the sum of all values. It may be a part of a larger
    array, so that figures of several processes can be added up.
    """

    def __init__(self, bounds: tuple[float, ...], cells: F64 | None = None) -> None:
        self.bounds = bounds
        self._edges = np.array(bounds)
        self._cells = np.zeros(self.cells_of(bounds)) if cells is None else cells
        # The same cells, faster for one at a time.
        self._single = cast("memoryview[float]", self._cells.data)

    @staticmethod
    def cells_of(bounds: tuple[float, ...]) -> int:
        """The number of cells that a histogram needs."""
        return len(bounds) + 2

    def observe(self, value: float, times: int = 1) -> None:
        self._single[bisect_left(self.bounds, value)] += times
        self._single[-1] += value * times

    def observe_all(self, values: F64, times: I32 | None = None) -> None:
        """Count each of many values, once or so many times."""
        if len(values) == 1:
            self.observe(float(values[0]), 1 if times is None else int(times[0]))
            return
        places = np.searchsorted(self._edges, values)
        self._cells[:-1] += np.bincount(places, times, minlength=len(self.bounds) + 1)
        self._cells[-1] += values.sum() if times is None else values @ times

    @property
    def counts(self) -> list[int]:
        return self._cells[:-1].astype(np.int64).tolist()

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._cells[-1])

    @property
    def count(self) -> int:
        return int(self._cells[:-1].sum())

    def copy(self) -> "Histogram":
        return Histogram(self.bounds, self._cells.copy())


SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


@dataclass(frozen=True, slots=True)
class Report:
    """Every metric by the name that vLLM gives it, without prefix and without `_total`.

    gauges, counters, histograms   by name
    request_success    by finish reason
    labelled           gauges with a label of their own, by it
    prompt_by_source   prompt tokens, computed or found in the cache
    accepted_at        drafts that were right, by place
    cache_config       num_gpu_blocks, block_size, enable_prefix_caching
    step_tokens        tokens that each step computed
    core_pid           the process of the step loop; 0: there is none
    crashes            of the step loop
    promised           requests with targets that ended: attained, or missed, by cause
    failed_rows        results that ended their request with an error, and no other
    drafting_paused    does speculation not draft, because it does not pay?
    grammars           totals of the compiler of grammars, and who waits for it
    lora               adapters in use, as labels; empty: no adapters are served
    """

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    request_success: Mapping[str, int]
    labelled: Mapping[str, Mapping[str, float]]
    prompt_by_source: Mapping[str, int]
    accepted_at: Sequence[int]
    cache_config: Mapping[str, int | bool]
    step_tokens: Histogram
    core_pid: int
    crashes: int
    promised: Mapping[str, int]
    failed_rows: int
    drafting_paused: bool
    grammars: Mapping[str, float]
    lora: Mapping[str, str]


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


def first_figures(capacity: Capacity) -> dict[str, Any]:
    """The answer to "gauges" of an engine without any request so far."""
    size = {
        "total_blocks": capacity.num_blocks,
        "block_size": capacity.block_size,
        "enable_prefix_caching": capacity.enable_prefix_caching,
    }
    totals = Stats().to_dict() | asdict(GrammarCounts()) | StepCounts().to_dict()
    return NO_REQUESTS | totals | size


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
