"""Reports as one HTML page each, with charts, for light and dark screens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, isfinite, log10

from paceline.simulator.results.cells import (
    COLUMNS,
    REPLICA_COLUMNS,
    done,
    facts,
    number,
    replica_rows,
    spread_cells,
)
from paceline.simulator.results.figures import SimulationReport

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


WIDTH, HEIGHT = 440, 190  # about as many pixels on a screen, so that text keeps its size
LEFT, RIGHT, TOP, BOTTOM = 52, 26, 10, 36
LABEL_HEIGHT = 14
FEWEST_TICKS = 3
COLOURS = 6  # classes c0 to c5 of the style sheet

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on a length of pixels."""

    least: float
    most: float
    first_px: float
    last_px: float
    logarithmic: bool = False

    @staticmethod
    def of(values: Sequence[float], first_px: float, last_px: float, logarithmic: bool) -> "Axis":
        found = [value for value in values if isfinite(value) and (value > 0 or not logarithmic)]
        most = max(found, default=1.0)
        if logarithmic:
            least = min(found, default=1.0)
            return Axis(least, max(most, 1.001 * least), first_px, last_px, True)
        return Axis(0.0, most if most > 0 else 1.0, first_px, last_px)

    @property
    def rounded(self) -> "Axis":
        """The axis up to a round value, so that nothing touches its end."""
        step = self.ticks[1]
        return replace(self, most=step * ceil(self.most / step))

    def px(self, value: float) -> float:
        if self.logarithmic:
            value = max(value, self.least)
            share = (log10(value) - log10(self.least)) / (log10(self.most) - log10(self.least))
        else:
            share = (value - self.least) / (self.most - self.least)
        return round(self.first_px + share * (self.last_px - self.first_px), 1)

    @property
    def ticks(self) -> list[float]:
        """Round values, about five."""
        if self.logarithmic:
            low, high = floor(log10(self.least)), floor(log10(self.most)) + 1
            for between in ((1,), (1, 2, 5), range(1, 10)):
                every = [scale * 10.0**power for power in range(low, high + 1) for scale in between]
                ticks = [tick for tick in every if self.least <= tick <= self.most]
                if len(ticks) >= FEWEST_TICKS:
                    break
            return ticks
        step = 10.0 ** floor(log10(self.most / 4))
        step *= next(scale for scale in (1, 2, 5, 10) if self.most / (step * scale) <= 5)  # noqa: PLR2004
        return [step * number for number in range(int(self.most / step) + 1)]


def line_chart(
    title: str, x: str, y: str, lines: Mapping[str, Points], logarithmic: bool = False
) -> str:
    """Lines by name; `logarithmic` is of the horizontal axis."""
    across, up = axes(list(lines.values()), logarithmic)
    drawn: list[str] = []
    for index, points in enumerate(lines.values()):
        corners = " ".join(f"{across.px(a)},{up.px(b)}" for a, b in points)
        drawn.append(f'<polyline class="line c{index % COLOURS}" points="{corners}"/>')
    return framed(title, (x, y), (across, up), drawn, list(lines) if len(lines) > 1 else [])


def point_chart(title: str, x: str, y: str, points: Mapping[str, tuple[float, float]]) -> str:
    """Points with their names beside them."""
    across, up = axes([list(points.values())], False)
    across = across.rounded
    drawn = [
        f'<circle class="dot c{index % COLOURS}" cx="{across.px(a)}" cy="{up.px(b)}" r="5">'
        f"<title>{escape(name)}: {a:,.6g}, {b:,.6g}</title></circle>"
        for index, (name, (a, b)) in enumerate(points.items())
    ]
    drawn += point_labels({name: (across.px(a), up.px(b)) for name, (a, b) in points.items()})
    return framed(title, (x, y), (across, up), drawn, [])


def point_labels(positions: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names towards the middle of the chart, each below the one before it on its side."""
    drawn: list[str] = []
    free = {"end": 0.0, "start": 0.0}
    colours = {name: index % COLOURS for index, name in enumerate(positions)}
    for name, (x, y) in sorted(positions.items(), key=lambda item: item[1][1]):
        anchor = "end" if x > WIDTH / 2 else "start"
        baseline = max(y + 4, free[anchor])
        free[anchor] = baseline + LABEL_HEIGHT
        beside = x - 10 if anchor == "end" else x + 10
        drawn.append(
            f'<text class="dot c{colours[name]}" text-anchor="{anchor}" x="{beside:g}" '
            f'y="{baseline:g}">{escape(name)}</text>'
        )
    return drawn


def axes(lines: Sequence[Points], logarithmic: bool) -> tuple[Axis, Axis]:
    values = [point for points in lines for point in points]
    across = Axis.of([a for a, _ in values], LEFT, WIDTH - RIGHT, logarithmic)
    return across, Axis.of([b for _, b in values], HEIGHT - BOTTOM, TOP, False).rounded


def framed(
    title: str,
    labels: tuple[str, str],
    both: tuple[Axis, Axis],
    shapes: Sequence[str],
    names: Sequence[str],
) -> str:
    """The shapes between axes; the heading names what the vertical one counts."""
    across, up = both
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts: list[str] = []
    for tick in across.ticks:
        parts.append(f'<path class="grid" d="M{across.px(tick)} {TOP}V{bottom}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{across.px(tick)}" y="{bottom + 14}">'
            f"{tick:,.6g}</text>"
        )
    for tick in up.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up.px(tick)}H{right}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{up.px(tick) + 4}">'
            f"{tick:,.6g}</text>"
        )
    x, y = map(escape, labels)
    parts.append(f'<text class="tick" text-anchor="end" x="{right}" y="{HEIGHT - 6}">{x}</text>')
    legend = "".join(
        f'<span class="key"><i class="c{index % COLOURS}"></i>{escape(name)}</span>'
        for index, name in enumerate(names)
    )
    unit = f"<span>{y}</span>" if y.lower() != title.lower() else ""
    caption = f"<figcaption>{escape(title)}{unit}{legend}</figcaption>"
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return f"<figure>{caption}{picture}{''.join([*parts, *shapes])}</svg></figure>"
