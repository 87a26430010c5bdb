"""The figures of an engine and its front ends, as `AsyncLLM` reports them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from paceline.core.arrays import F64, I32


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


@dataclass(frozen=True, slots=True)
class Report:
    """Every metric by the name that vLLM gives it, without prefix and without `_total`."""

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    request_success: Mapping[str, int]  # by finish reason
    waiting_by_reason: Mapping[str, int]  # capacity, deferred
    prompt_by_source: Mapping[str, int]  # prompt tokens, computed or found in the cache
    accepted_at: Sequence[int]  # drafts that were right, by place
    cache_config: Mapping[str, int | bool]  # num_gpu_blocks, block_size, enable_prefix_caching
    step_tokens: Histogram  # tokens that each step computed
    core_pid: int  # the process of the step loop; 0: there is none
    crashes: int  # of the step loop
    failed_rows: int  # results that ended their request with an error, and no other
    drafting_paused: bool  # does speculation not draft, because it does not pay?
    grammars: Mapping[str, float]  # totals of the compiler of grammars, and who waits for it
    lora: Mapping[str, str]  # adapters in use, as labels; empty: no adapters are served
