"""Requests as their client saw them, and the statistics of a run."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.errors import ConfigError

TARGETS = ("ttft", "tpot", "e2e")
MS = 1000.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its client saw it; times are in seconds since the run began.

    A failed request has the kind of its failure in `error`, the message of the server, if there
    was one, in `message`, and what came before the failure.
    """

    planned_s: float  # when it should have been sent
    sent_s: float
    pieces_s: tuple[float, ...]  # when text arrived
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    error: str = ""
    message: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.pieces_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        """End-to-end latency."""
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is only one."""
        if self.output_tokens <= 1:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: the gaps between pieces."""
        return np.diff(np.array(self.pieces_s)).tolist()

    def meets(self, targets_ms: Mapping[str, float]) -> bool:
        """Did it succeed within every target? A single token meets tpot."""
        if self.error:
            return False
        taken = {"ttft": self.ttft_s, "tpot": self.tpot_s or 0.0, "e2e": self.e2e_s}
        return all(taken[name] * MS <= limit for name, limit in targets_ms.items())


@dataclass(frozen=True, slots=True)
class PrefixCacheUse:
    """Prompt tokens that a server looked up in its prefix cache, and found there."""

    queries: int
    hits: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries else 0.0

    def __sub__(self, before: "PrefixCacheUse") -> "PrefixCacheUse":
        return PrefixCacheUse(self.queries - before.queries, self.hits - before.hits)


@dataclass(frozen=True, slots=True)
class ServerRun:
    """One sample per call, in the order of the calls, and how the prefix cache was used meanwhile;
    None: the server does not say."""

    samples: Sequence[Sample]
    cache: PrefixCacheUse | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles, in the unit of the values."""

    mean: float
    median: float
    p90: float
    p99: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> "Spread | None":
        """Percentiles are interpolated linearly; None if there are no values."""
        found = np.array(list(values), np.float64)
        if not found.size:
            return None
        median, p90, p99 = np.percentile(found, (50, 90, 99)).tolist()
        return Spread(float(found.mean()), median, p90, p99, float(found.max()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run. Its spreads are in milliseconds, its rates per second.

    Rates count successful requests, from the first request sent to the last one finished.
    `goodput` counts the requests that met every target; None without targets.
    """

    duration_s: float
    completed: int
    errors: Mapping[str, int]  # by kind
    messages: Mapping[str, str]  # by kind, the first of each
    prompt_tokens: int
    output_tokens: int
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    behind_ms: Spread | None  # how late requests were sent, because the client could not keep up
    goodput: float | None

    @property
    def requests_per_s(self) -> float:
        return rate(self.completed, self.duration_s)

    @property
    def output_tokens_per_s(self) -> float:
        return rate(self.output_tokens, self.duration_s)

    @property
    def total_tokens_per_s(self) -> float:
        return rate(self.prompt_tokens + self.output_tokens, self.duration_s)

    @staticmethod
    def of(samples: Sequence[Sample], targets_ms: Mapping[str, float]) -> "Outcome":
        good = [sample for sample in samples if not sample.error]
        begun = min((sample.sent_s for sample in samples), default=0.0)
        ended = max((sample.ended_s for sample in samples), default=0.0)
        met = sum(sample.meets(targets_ms) for sample in good)
        return Outcome(
            duration_s=ended - begun,
            completed=len(good),
            errors=dict(Counter(sample.error for sample in samples if sample.error)),
            messages={one.error: one.message for one in reversed(samples) if one.message},
            prompt_tokens=sum(sample.prompt_tokens for sample in good),
            output_tokens=sum(sample.output_tokens for sample in good),
            ttft_ms=spread_ms(sample.ttft_s for sample in good),
            tpot_ms=spread_ms(sample.tpot_s for sample in good if sample.tpot_s is not None),
            itl_ms=spread_ms(gap for sample in good for gap in sample.itl_s),
            e2e_ms=spread_ms(sample.e2e_s for sample in good),
            behind_ms=spread_ms(sample.sent_s - sample.planned_s for sample in samples),
            goodput=rate(met, ended - begun) if targets_ms else None,
        )


def spread_ms(seconds: Iterable[float]) -> Spread | None:
    return Spread.of(one * MS for one in seconds)


def rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def targets_of(texts: Iterable[str]) -> dict[str, float]:
    """Parse targets in milliseconds, for example "ttft:200"."""
    found: dict[str, float] = {}
    for text in texts:
        name, separator, value = text.partition(":")
        if not separator:
            raise ConfigError(f"goodput {text!r} is not NAME:MS, for example ttft:200")
        if name not in TARGETS:
            raise ConfigError(
                f"goodput {text!r}: no target {name!r}; choose one of {', '.join(TARGETS)}"
            )
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(
                f"goodput {text!r}: {value!r} is not a number of milliseconds"
            ) from None
        if not found[name] > 0:
            raise ConfigError(f"goodput {text!r}: a target must be positive")
    return found
