"""Tables for a terminal, drawn with rich."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from paceline.bench.samples import Spread
from paceline.simulate.figures import Figures, SimulationReport

COLUMNS = ("mean", "p50", "p90", "p99", "max")


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


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column is text, the others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if place else "left", no_wrap=place == 0)
    for row in rows:
        made.add_row(*row)
    return made


def latencies(total: Figures) -> Table:
    rows = [[name, *spread_cells(spread)] for name, spread in total.latencies.items()]
    return table("milliseconds", ("", *COLUMNS), rows)


def facts(report: SimulationReport, targets_ms: Mapping[str, float]) -> dict[str, str]:
    """What a report says in a line each."""
    total, stats = report.total, report.stats
    ends = ", ".join(f"{count:,} {name}" for name, count in sorted(total.outcomes.items()))
    most = max(report.timeline.get("used_blocks", [0]), default=0)
    found = {
        "requests": f"{total.completed:,} of {total.requests:,} completed ({ends})",
        "duration": f"{total.duration_s:,.1f} s simulated, {stats['steps']:,} steps",
        "throughput": f"{number(total.requests_per_s)} requests/s, "
        f"{number(total.output_tokens_per_s)} output tokens/s",
        "prefix cache": f"{100 * total.hit_rate:.1f} % of prompt tokens found",
        "preemptions": f"{total.preemptions:,}",
        "blocks": f"{most:,.0f} of {report.total_blocks:,} used at most",
        "queue": f"{max(report.timeline.get('waiting', [0]), default=0):,.0f} waiting at most",
    }
    if total.goodput is not None and total.attained is not None:
        within = ", ".join(f"{name} {limit:g} ms" for name, limit in targets_ms.items())
        found["goodput"] = (
            f"{number(total.goodput)} requests/s, {100 * total.attained:.1f} % within {within}"
        )
    for outcome, message in report.messages.items():
        found[f"first {outcome}"] = message
    return found


def tenants(report: SimulationReport) -> Table:
    rows: list[list[str]] = []
    for name, one in report.tenants.items():
        spreads = [one.ttft_ms, one.tpot_ms, one.e2e_ms]
        cells = [number(None if spread is None else spread.p99) for spread in spreads]
        share = "-" if one.attained is None else f"{100 * one.attained:.1f}"
        tokens = number(one.output_tokens_per_s)
        rows.append([name or "(none)", f"{one.completed:,}", tokens, *cells, share])
    columns = ("tenant", "completed", "tokens/s", "TTFT p99", "TPOT p99", "E2E p99", "in target %")
    return table("tenants, milliseconds", columns, rows)


def show(
    report: SimulationReport, targets_ms: Mapping[str, float], console: Console | None = None
) -> None:
    """Print a report."""
    out = console or Console()
    width = max(map(len, facts(report, targets_ms)))
    for name, text in facts(report, targets_ms).items():
        out.print(f"{name.ljust(width + 2)}{text}", markup=False, highlight=False)
    out.print(latencies(report.total))
    if report.tenants:
        out.print(tenants(report))
