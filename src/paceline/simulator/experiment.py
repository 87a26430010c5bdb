"""Simulates one load under several settings, in several processes, and compares them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from html import escape
from multiprocessing import get_context
from typing import Any, Self, TypeVar

import numpy as np

from paceline.core.arrays import F64, I32, Bool, Index
from paceline.core.errors import ConfigError
from paceline.simulator.loads import LoadSource, Workload
from paceline.simulator.results.cells import done, number
from paceline.simulator.results.figures import COMPLETE, SimulationReport
from paceline.simulator.results.page import html_table, page, point_chart
from paceline.simulator.server import ServerModel, SimulatedServer

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings under a name."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, eq=False)
class VariantResult:
    """What came of a load under a variant; latencies by request, NaN where it did not complete."""

    name: str
    report: SimulationReport
    ids: Sequence[str]
    tenants: Sequence[str]
    prompts: I32
    ttft_s: F64
    e2e_s: F64
    explained: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What all variants share."""

    source: LoadSource
    model: ServerModel
    targets_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    explained: tuple[str, ...] = ()

    def run(self, variant: Variant) -> VariantResult:
        return self.run_on(self.source.workload(), variant)

    def run_on(self, load: Workload, variant: Variant) -> VariantResult:
        settings = {**self.model.settings, **variant.settings}
        model = replace(self.model, settings=settings)
        run = SimulatedServer(model, load.requests, load.outputs, self.explained).run()
        log = run.log
        good = np.isin(np.array(log.outcome, object), COMPLETE)
        return VariantResult(
            variant.name,
            SimulationReport.of(run, self.targets_ms),
            [one.id for one in run.requests],
            [one.tenant for one in run.requests],
            log.prompts,
            np.where(good, log.first - log.arrival, np.nan),
            np.where(good, log.ended - log.arrival, np.nan),
            run.explained,
        )

    def run_all(self, variants: Sequence[Variant], jobs: int) -> list[VariantResult]:
        """In the order of the variants, up to `jobs` at a time."""
        with Workers(min(jobs, len(variants))) as workers:
            return workers.map(self.run, variants)


class Workers:
    """Up to `jobs` processes, which start with the first items and remain for all later ones."""

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The result of each item, in order; a single one is computed in this process."""
        listed = list(items)
        if self._pool is None or len(listed) <= 1:
            return [function(item) for item in listed]
        return list(self._pool.map(function, listed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def variants_of(policies: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[Variant]:
    """Every policy with every set of settings."""
    found: list[Variant] = []
    for policy in policies:
        for given in settings or [{}]:
            named = [policy, *(f"{name}={value}" for name, value in given.items())]
            found.append(Variant(" ".join(named), {**given, "policy": policy}))
    return found


NOTABLE = 0.02  # a relative change that is worth a word
COLUMNS = (
    *("variant", "done", "tokens/s", "TTFT p50", "TTFT p99", "ITL p99", "E2E p99"),
    *("hits %", "preempted", "drafts %", "in target %", "best"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """The mean time to first token of a group of requests, in two variants."""

    group: str
    before_s: float
    after_s: float

    @property
    def share(self) -> float:
        return (self.after_s - self.before_s) / max(self.before_s, 1e-9)

    def sentence(self) -> str:
        return f"{self.group} ({self.before_s:.3g} to {self.after_s:.3g} s)"


@dataclass(frozen=True, slots=True)
class RequestChange:
    """How much sooner or later one request ends."""

    id: str
    tenant: str
    prompt: int  # tokens
    before_s: float  # end-to-end
    after_s: float


def groups(result: VariantResult) -> dict[str, Index]:
    """Requests by tenant, or by the length of the prompt if there is one tenant."""
    tenants = np.array(result.tenants, object)
    names = sorted(set(tenants.tolist()))
    if len(names) > 1:
        return {f"tenant {name or '(none)'}": np.flatnonzero(tenants == name) for name in names}
    low, high = np.percentile(result.prompts, (33, 67)).tolist()
    size = result.prompts
    found = {
        f"prompts up to {low:.0f} tokens": np.flatnonzero(size <= low),
        f"prompts of {low:.0f} to {high:.0f} tokens": np.flatnonzero((size > low) & (size <= high)),
        f"prompts above {high:.0f} tokens": np.flatnonzero(size > high),
    }
    return {name: rows for name, rows in found.items() if len(rows)}


def changes(before: VariantResult, after: VariantResult) -> list[Change]:
    """Of each group, over the requests that completed in both."""
    both: Bool = ~(np.isnan(before.ttft_s) | np.isnan(after.ttft_s))
    found: list[Change] = []
    for name, rows in groups(before).items():
        own = rows[both[rows]]
        if len(own):
            means = float(before.ttft_s[own].mean()), float(after.ttft_s[own].mean())
            found.append(Change(name, *means))
    return found


def sentence(before: VariantResult, after: VariantResult) -> str:
    """What was gained, at whose expense."""
    found = changes(before, after)
    gained = [one for one in found if one.share < -NOTABLE]
    lost = [one for one in found if one.share > NOTABLE]
    rates = [one.report.total.output_tokens_per_s for one in (before, after)]
    share = (rates[1] - rates[0]) / max(rates[0], 1e-9)
    output = "with the same throughput" if abs(share) <= NOTABLE else f"throughput {share:+.0%}"
    tails = [merit(one)[1] / 1e3 for one in (before, after)]
    if abs(tails[1] - tails[0]) > NOTABLE * tails[0]:
        output += f" and a TTFT p99 of {tails[1]:.3g} instead of {tails[0]:.3g} s"
    output += pace(before, after)
    ended = after.report.total.completed - before.report.total.completed
    more = "" if not ended else f"; {abs(ended):,} {'more' if ended > 0 else 'fewer'} complete"
    names = f"{after.name} instead of {before.name}"
    if not gained and not lost:
        return f"{names}: no group waits noticeably longer or shorter, {output}{more}."
    parts: list[str] = []
    if gained:
        parts.append("sooner first tokens for " + ", ".join(one.sentence() for one in gained))
    if lost:
        link = "at the expense of " if gained else "later first tokens for "
        parts.append(link + ", ".join(one.sentence() for one in lost))
    else:
        parts.append("at no group's expense")
    return f"{names}: {', '.join(parts)}, {output}{more}."


def pace(before: VariantResult, after: VariantResult) -> str:
    """How much sooner or later tokens follow each other, in words; empty: as soon as before."""
    one, other = (result.report.total.tpot_ms for result in (before, after))
    if one is None or other is None or abs(other.mean - one.mean) <= NOTABLE * one.mean:
        return ""
    return f", and {number(other.mean)} instead of {number(one.mean)} ms per output token"


def largest_changes(
    before: VariantResult, after: VariantResult, count: int
) -> tuple[list[RequestChange], list[RequestChange]]:
    """The requests that end so much sooner, and so much later, most first."""
    delta = after.e2e_s - before.e2e_s
    known = np.flatnonzero(~np.isnan(delta))
    order = known[np.argsort(delta[known], kind="stable")]

    def described(rows: Sequence[int]) -> list[RequestChange]:
        return [
            RequestChange(
                before.ids[row],
                before.tenants[row],
                int(before.prompts[row]),
                float(before.e2e_s[row]),
                float(after.e2e_s[row]),
            )
            for row in rows
        ]

    gained = [row for row in order[:count].tolist() if delta[row] < 0]
    lost = [row for row in order[::-1][:count].tolist() if delta[row] > 0]
    return described(gained), described(lost)


def merit(result: VariantResult) -> tuple[float, float]:
    """Output tokens per second, and the 99th percentile of the time to first token in ms."""
    total = result.report.total
    return total.output_tokens_per_s, total.ttft_ms.p99 if total.ttft_ms else float("inf")


def undominated(results: Sequence[VariantResult]) -> list[bool]:
    """For which variants no other has more throughput and a lower latency?"""
    merits = [merit(one) for one in results]
    return [
        not any(
            rate >= own_rate and late <= own_late and (rate, late) != (own_rate, own_late)
            for rate, late in merits
        )
        for own_rate, own_late in merits
    ]


def rows_of(results: Sequence[VariantResult]) -> list[list[str]]:
    found: list[list[str]] = []
    for one, is_best in zip(results, undominated(results), strict=True):
        total = one.report.total
        ttft, itl, e2e = total.ttft_ms, total.itl_ms, total.e2e_ms
        found.append(
            [
                one.name,
                done(total),
                number(total.output_tokens_per_s),
                number(ttft and ttft.median),
                *(number(spread and spread.p99) for spread in (ttft, itl, e2e)),
                f"{100 * total.hit_rate:.1f}",
                f"{total.preemptions:,}",
                "-" if (share := one.report.acceptance) is None else f"{100 * share:.1f}",
                "-" if total.attained is None else f"{100 * total.attained:.1f}",
                "*" if is_best else "",
            ]
        )
    return found


def comparison_page(title: str, results: Sequence[VariantResult], about: Sequence[str] = ()) -> str:
    """A table, the Pareto chart and the sentences; `about` has lines on what was simulated."""
    points = {one.name: (merit(one)[0], merit(one)[1]) for one in results}
    finite = {name: pair for name, pair in points.items() if pair[1] != float("inf")}
    chart = point_chart("Throughput and latency", "output tokens/s", "TTFT p99, ms", finite)
    said = "".join(f"<p>{escape(sentence(results[0], one))}</p>" for one in results[1:])
    note = (
        "<p>Times are in milliseconds. "
        "* no other variant has both more throughput and a lower TTFT p99.</p>"
    )
    lines = "".join(f"<p>{escape(line)}</p>" for line in about)
    return page(title, [lines, html_table(COLUMNS, rows_of(results)), note, chart, said])


def to_dict(results: Sequence[VariantResult]) -> dict[str, Any]:
    return {
        "variants": {one.name: one.report.to_dict() for one in results},
        "best": [one.name for one, best in zip(results, undominated(results), strict=True) if best],
        "sentences": [sentence(results[0], one) for one in results[1:]],
    }


def explanations(results: Sequence[VariantResult]) -> Mapping[str, Mapping[str, str]]:
    """By request and variant. ConfigError for a request that is not in the load."""
    found: dict[str, dict[str, str]] = {}
    for one in results:
        for name, text in one.explained.items():
            if name not in one.ids:
                some = ", ".join(one.ids[:5])
                raise ConfigError(
                    f"there is no request {name!r} in the load, which has {some}, ..."
                )
            found.setdefault(name, {})[one.name] = text
    return found
