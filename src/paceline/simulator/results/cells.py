"""Figures as text."""

from collections.abc import Mapping

from paceline.bench.samples import Spread
from paceline.sched.service.promises import CAUSES
from paceline.simulator.results.figures import Figures, SimulationReport

COLUMNS = ("mean", "p50", "p90", "p99", "max")
REPLICA_COLUMNS = (
    "replica",
    "requests",
    "tokens/s",
    "hits %",
    "busy %",
    "TTFT p99, ms",
    "preempted",
)


def number(value: float | None) -> str:
    """With as many digits as are worth reading."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2  # noqa: PLR2004
    return f"{value:,.{digits}f}"


def spread_cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * len(COLUMNS)
    values = spread.mean, spread.median, spread.p90, spread.p99, spread.most
    return [number(value) for value in values]


def done(total: Figures) -> str:
    """How many requests completed, and of how many if some did not."""
    found, of = f"{total.completed:,}", f"{total.requests:,}"
    return found if found == of else f"{found} of {of}"


def facts(report: SimulationReport, targets_ms: Mapping[str, float]) -> dict[str, str]:
    """Facts of a report, one in each line."""
    total, stats = report.total, report.stats
    ends = ", ".join(f"{count:,} {name}" for name, count in sorted(total.outcomes.items()))
    most = max(report.timeline.get("used_blocks", [0]), default=0)
    waiting = max(report.timeline.get("waiting", [0]), default=0)
    found = {
        "requests": f"{total.completed:,} of {total.requests:,} completed ({ends})",
        "duration": f"{total.duration_s:,.1f} s simulated, {stats['steps']:,} steps",
        "throughput": f"{number(total.requests_per_s)} requests/s, "
        f"{number(total.output_tokens_per_s)} output tokens/s",
        "prefix cache": f"{100 * total.hit_rate:.1f} % of prompt tokens found",
        "preemptions": f"{total.preemptions:,}",
        "blocks": f"{most:,.0f} of {report.total_blocks:,} used at most",
        "queue": f"{waiting:,.0f} left waiting by a step at most",
    }
    if report.acceptance is not None:
        found["drafts"] = (
            f"{stats['accepted']:,} of {stats['drafted']:,} accepted "
            f"({100 * report.acceptance:.1f} %), {total.tokens_per_step:.2f} tokens per step"
        )
    if total.goodput is not None and total.attained is not None:
        named = ", ".join(f"{name} {limit:g} ms" for name, limit in targets_ms.items())
        within = f"within {named}" if named else "met their targets"
        found["goodput"] = (
            f"{number(total.goodput)} requests/s, {100 * total.attained:.1f} % {within}"
        )
    missed = {cause: stats.get(f"slo_missed_{cause}", 0) for cause in CAUSES}
    if any(missed.values()):
        found["missed"] = ", ".join(f"{count:,} by {one}" for one, count in missed.items() if count)
    for outcome, message in report.messages.items():
        found[f"first {outcome}"] = message
    return found


def replica_rows(report: SimulationReport) -> list[list[str]]:
    """A line for each of several replicas."""
    return [
        [
            f"{index}",
            f"{one.requests:,}",
            number(one.output_tokens_per_s),
            f"{100 * one.hit_rate:.1f}",
            f"{100 * one.busy:.1f}",
            number(one.ttft_ms and one.ttft_ms.p99),
            f"{one.preemptions:,}",
        ]
        for index, one in enumerate(report.replicas)
    ]
