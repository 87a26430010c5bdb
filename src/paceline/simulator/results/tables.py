"""Tables for a terminal, drawn with rich."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.simulator.results.cells import (
    COLUMNS,
    REPLICA_COLUMNS,
    done,
    facts,
    number,
    replica_rows,
    spread_cells,
)
from paceline.simulator.results.figures import Figures, SimulationReport

EMPTY = {"-", "0", "0.0"}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column is text, the others are numbers. Columns that say nothing are left out."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    shown = [
        index for index, cells in enumerate(zip(*rows, strict=True)) if not set(cells) <= EMPTY
    ]
    for index in shown:
        made.add_column(columns[index], justify="right" if index else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(row[index]) for index in shown))  # names may look like markup
    return made


def latencies(total: Figures) -> Table:
    rows = [[name, *spread_cells(spread)] for name, spread in total.latencies.items()]
    return table("milliseconds", ("", *COLUMNS), rows)


def tenants(report: SimulationReport) -> Table:
    rows: list[list[str]] = []
    for name, one in report.tenants.items():
        spreads = [one.ttft_ms, one.tpot_ms, one.e2e_ms]
        cells = [number(None if spread is None else spread.p99) for spread in spreads]
        share = "-" if one.attained is None else f"{100 * one.attained:.1f}"
        tokens = number(one.output_tokens_per_s)
        rows.append([name or "(none)", done(one), tokens, *cells, share])
    columns = ("tenant", "completed", "tokens/s", "TTFT p99", "TPOT p99", "E2E p99", "in target %")
    return table("tenants, milliseconds", columns, rows)


def replicas(report: SimulationReport) -> Table:
    return table("replicas", REPLICA_COLUMNS, replica_rows(report))


def show(
    report: SimulationReport, targets_ms: Mapping[str, float], console: Console | None = None
) -> None:
    """Print a report."""
    out = console or Console()
    width = max(map(len, facts(report, targets_ms)))
    for name, text in facts(report, targets_ms).items():
        out.print(f"{name.ljust(width + 2)}{text}", markup=False, highlight=False)
    if report.total.completed:
        out.print(latencies(report.total))
    if report.replicas:
        out.print(replicas(report))
    if report.tenants:
        out.print(tenants(report))
