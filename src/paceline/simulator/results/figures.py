"""The figures of a simulation: latencies, rates, goodput, for all requests and for each tenant."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.bench.samples import MS, Spread, rate
from paceline.core.arrays import F64, Bool, Index
from paceline.simulator.results.request_log import GapHistogram, RequestLog
from paceline.simulator.server import SimulatedRun

COMPLETE = ("length", "stop")


@dataclass(frozen=True, slots=True)
class Figures:
    """Latencies are of requests that completed, in milliseconds; rates are per second, from the
    first request sent to the last one ended. `goodput` counts requests that met every target.

    requests, completed, outcomes    how many there are, how many completed, and how each ended
    duration_s                       seconds from the first request to the last end
    prompt_tokens, output_tokens     of completed requests
    pieces                           times that these got tokens, one or more at a time
    ttft_ms, tpot_ms, itl_ms, e2e_ms latencies; itl_ms is of all requests together
    queue_ms                         from arrival to the first admission: the front end, the rest of
                                     the step that runs, and the queue
    goodput, attained                requests per second within all targets, and their share
    preemptions, cached_tokens       of all requests
    """

    requests: int
    completed: int
    outcomes: Mapping[str, int]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    pieces: int
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    queue_ms: Spread | None
    goodput: float | None
    attained: float | None
    preemptions: int
    cached_tokens: int

    @property
    def latencies(self) -> dict[str, Spread | None]:
        """By the name that people read."""
        return {
            "time to first token": self.ttft_ms,
            "inter-token latency": self.itl_ms,
            "time per output token": self.tpot_ms,
            "end-to-end latency": self.e2e_ms,
            "time to admission": self.queue_ms,
        }

    @property
    def requests_per_s(self) -> float:
        return rate(self.completed, self.duration_s)

    @property
    def output_tokens_per_s(self) -> float:
        return rate(self.output_tokens, self.duration_s)

    @property
    def tokens_per_step(self) -> float:
        """That a request gets, on average, in a step that yields any."""
        return self.output_tokens / max(self.pieces, 1)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found in the cache."""
        return self.cached_tokens / max(self.prompt_tokens, 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "hit_rate": self.hit_rate,
            "tokens_per_step": self.tokens_per_step,
        }


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """What one of several replicas did; rates are per second of the whole simulation."""

    requests: int
    completed: int
    output_tokens_per_s: float
    hit_rate: float  # share of prompt tokens that were found in the cache
    busy: float  # share of the time in which it has requests
    ttft_ms: Spread | None
    preemptions: int

    @staticmethod
    def of(log: RequestLog, rows: Index, duration_s: float) -> "ReplicaFigures":
        own = figures(log, rows, {})
        return ReplicaFigures(
            own.requests,
            own.completed,
            rate(own.output_tokens, duration_s),
            own.hit_rate,
            busy_s(log, rows) / max(duration_s, 1e-9),
            own.ttft_ms,
            own.preemptions,
        )


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Everything that is reported about a simulation."""

    total: Figures
    tenants: Mapping[str, Figures]  # empty if there is one tenant
    timeline: Mapping[str, Sequence[float]]
    quantiles: Mapping[
        str, Sequence[float]
    ]  # ms that 0, 1, ... 100 % of the requests do not exceed
    total_blocks: int
    stats: Mapping[str, int]
    messages: Mapping[str, str]  # why requests did not complete: the first message of each outcome
    replicas: Sequence[ReplicaFigures]  # empty if there is one

    @staticmethod
    def of(run: SimulatedRun, targets_ms: Mapping[str, float]) -> "SimulationReport":
        log = run.log
        everyone = np.arange(len(run.requests))
        names = np.array([one.tenant for one in run.requests], object)
        tenants = sorted(set(names.tolist()))
        by_tenant: dict[str, Figures] = {}
        if len(tenants) > 1:
            for name in tenants:
                own = np.flatnonzero(names == name)
                by_tenant[name] = figures(log, own, targets_ms)
        messages: dict[str, str] = {}
        for number, message in log.message.items():
            messages.setdefault(log.outcome[number], f"{run.requests[number].id}: {message}")
        total = figures(log, everyone, targets_ms, log.gaps)
        return SimulationReport(
            total,
            by_tenant,
            run.timeline.to_dict(),
            quantiles(log),
            run.total_blocks,
            run.stats.to_dict(),
            messages,
            [ReplicaFigures.of(log, rows, total.duration_s) for rows in run.parts],
        )

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that were right; None: there were no drafts."""
        drafted = self.stats["drafted"]
        return self.stats["accepted"] / drafted if drafted else None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.total.to_dict(),
            "acceptance": self.acceptance,
            "tenants": {name: one.to_dict() for name, one in self.tenants.items()},
            "timeline": dict(self.timeline),
            "quantiles": dict(self.quantiles),
            "total_blocks": self.total_blocks,
            "stats": dict(self.stats),
            "messages": dict(self.messages),
            "replicas": [asdict(one) for one in self.replicas],
        }


def figures(
    log: RequestLog, rows: Index, targets_ms: Mapping[str, float], gaps: GapHistogram | None = None
) -> Figures:
    """Of some requests; the gaps are of these, if they are given."""
    outcome = np.array(log.outcome, object)[rows]
    good = rows[np.isin(outcome, COMPLETE)]
    many = good[log.tokens[good] > 1]
    sent = log.arrival[rows]
    times = {
        "ttft": (log.first[good] - log.arrival[good]) * MS,
        "e2e": (log.ended[good] - log.arrival[good]) * MS,
    }
    tpot = (log.last[many] - log.first[many]) / (log.tokens[many] - 1) * MS
    within = met(log, good, times, targets_ms)
    duration = float(np.nanmax(log.ended[rows]) - np.nanmin(sent)) if len(rows) else 0.0
    return Figures(
        requests=len(rows),
        completed=len(good),
        outcomes=dict(Counter(outcome.tolist())),
        duration_s=duration,
        prompt_tokens=int(log.prompts[good].sum()),
        output_tokens=int(log.tokens[good].sum()),
        pieces=int(log.pieces[good].sum()),
        ttft_ms=Spread.of(times["ttft"]),
        tpot_ms=Spread.of(tpot),
        itl_ms=gap_spread(log, many, gaps),
        e2e_ms=Spread.of(times["e2e"]),
        queue_ms=Spread.of(log.queued[good] * MS),
        goodput=rate(int(within.sum()), duration) if targets_ms or log.promises else None,
        attained=float(within.sum()) / max(len(rows), 1) if targets_ms or log.promises else None,
        preemptions=int(log.preemptions[rows].sum()),
        cached_tokens=int(log.cached[good].sum()),
    )


def busy_s(log: RequestLog, rows: Index) -> float:
    """Seconds in which at least one of some requests was open."""
    rows = rows[np.argsort(log.arrival[rows], kind="stable")]
    begun, ended = log.arrival[rows], np.maximum.accumulate(log.ended[rows])
    before = np.concatenate([[-np.inf], ended])[:-1]
    return float(np.maximum(ended - np.maximum(begun, before), 0.0).sum())


def quantiles(log: RequestLog) -> dict[str, list[float]]:
    """By latency; empty if no request completed."""
    good = np.isin(np.array(log.outcome, object), COMPLETE)
    if not good.any():
        return {}
    ends = {"time to first token": log.first, "end-to-end latency": log.ended}
    percents = np.arange(101)
    return {
        name: np.percentile((end - log.arrival)[good] * MS, percents).tolist()
        for name, end in ends.items()
    }


def met(
    log: RequestLog, good: Index, times: Mapping[str, F64], targets_ms: Mapping[str, float]
) -> Bool:
    """Which requests were within every target, and got what was promised. A single token meets
    tpot."""
    spent = log.last[good] - log.first[good]
    taken = {**times, "tpot": spent / np.maximum(log.tokens[good] - 1, 1) * MS}
    within: Bool = log.kept[good]
    for name, limit in targets_ms.items():
        within &= taken[name] <= limit
    return within


def gap_spread(log: RequestLog, many: Index, gaps: GapHistogram | None) -> Spread | None:
    if gaps is None or not len(many):
        return None
    total = float((log.last[many] - log.first[many]).sum())
    mean = total / max(int((log.pieces[many] - 1).sum()), 1)
    median, p90, p99 = (gaps.percentile_s(percent) * MS for percent in (50, 90, 99))
    return Spread(mean * MS, median, p90, p99, gaps.most_s * MS)
