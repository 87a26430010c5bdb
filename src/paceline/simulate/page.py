"""Reports as one HTML page each, with charts, for light and dark screens."""

from collections.abc import Mapping, Sequence
from html import escape

from paceline.simulate.cells import (
    COLUMNS,
    REPLICA_COLUMNS,
    done,
    facts,
    number,
    replica_rows,
    spread_cells,
)
from paceline.simulate.charts import line_chart
from paceline.simulate.figures import SimulationReport

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #66707a; --grid: #dfe3e8; --paper: #fff;
  --c0: #0b62d6; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #b45309; --c5: #be185d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --dim: #98a2ad; --grid: #343a42; --paper: #15181c;
    --c0: #6aa9ff; --c1: #ff9d66; --c2: #5fd08a; --c3: #c99bff; --c4: #f2c14e; --c5: #ff8ab5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1400px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { max-width: 80ch; }
.table { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--grid);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, .facts td { text-align: left; }
.facts td { white-space: normal; } .facts th { font-weight: 400; color: var(--dim); }
.charts { display: grid; gap: 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); }
figure { margin: 0; max-width: 560px; } figcaption { font-weight: 600; }
figcaption span { display: inline-block; margin-left: .8rem; font-weight: 400;
  color: var(--dim); }
.charts h2 { margin: 0; font-size: 1rem; } .charts :is(th, td) { padding: .2rem .45rem; }
svg { display: block; width: 100%; height: auto; }
text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.tick { fill: var(--dim); font-size: 11px; } .grid { stroke: var(--grid); fill: none; }
.line { fill: none; stroke-width: 1.6; }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
"""
COLOUR_RULES = "".join(
    f".line.c{n} {{ stroke: var(--c{n}); }} .dot.c{n} {{ fill: var(--c{n}); }} "
    f".key .c{n} {{ background: var(--c{n}); }}\n"
    for n in range(6)
)


def page(title: str, sections: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{COLOUR_RULES}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(sections)}</body></html>\n"
    )


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="table">{table}</div>'


def fact_table(found: Mapping[str, str]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
        for name, text in found.items()
    )
    return f'<table class="facts">{lines}</table>'


def simulation_page(
    title: str, report: SimulationReport, targets_ms: Mapping[str, float], about: Sequence[str]
) -> str:
    """The page of one simulation; `about` has lines on what was simulated."""
    spreads = [[name, *spread_cells(one)] for name, one in report.total.latencies.items()]
    summary = [
        fact_table(facts(report, targets_ms)),
        f"<section><h2>Latencies, milliseconds</h2>{html_table(('', *COLUMNS), spreads)}</section>",
        *([latency_chart(report)] if report.quantiles else []),
    ]
    sections = [
        *(f"<p>{escape(line)}</p>" for line in about),
        f'<div class="charts">{"".join(summary)}</div>',
        f'<h2>Over time</h2><div class="charts">{"".join(time_charts(report))}</div>',
    ]
    if report.replicas:
        table = html_table(REPLICA_COLUMNS, replica_rows(report))
        sections.append(f"<h2>Replicas</h2>{table}")
    if report.tenants:
        sections.append(tenant_table(report))
    return page(title, sections)


def latency_chart(report: SimulationReport) -> str:
    lines = {
        name: list(zip(values, map(float, range(101)), strict=True))
        for name, values in report.quantiles.items()
    }
    return line_chart("Requests within a time", "ms", "%", lines, logarithmic=True)


def time_charts(report: SimulationReport) -> list[str]:
    line = report.timeline
    times = line.get("time_s", [])

    def of(name: str) -> list[tuple[float, float]]:
        return list(zip(times, line.get(name, []), strict=True))

    return [
        line_chart(
            "Requests", "s", "requests", {"running": of("running"), "waiting": of("waiting")}
        ),
        line_chart("Output", "s", "tokens/s", {"tokens per second": of("tokens_per_s")}),
        line_chart("Blocks", "s", "blocks", {"used": of("used_blocks")}),
    ]


def tenant_table(report: SimulationReport) -> str:
    rows: list[list[str]] = []
    for name, one in report.tenants.items():
        p99 = [None if spread is None else spread.p99 for spread in (one.ttft_ms, one.e2e_ms)]
        cells = [done(one), number(one.output_tokens_per_s), *map(number, p99)]
        rows.append([name or "(none)", *cells])
    columns = ("tenant", "completed", "tokens/s", "TTFT p99, ms", "E2E p99, ms")
    return f"<h2>Tenants</h2>{html_table(columns, rows)}"
