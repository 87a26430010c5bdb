"""Counts of values by size."""

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class Histogram:
    """`counts[i]` values lie in (bounds[i - 1], bounds[i]]; the last count has no upper bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list[int])
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> "Histogram":
        return Histogram(self.bounds, list(self.counts), self.total)
