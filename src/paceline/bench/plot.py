"""Draws a run of a server with matplotlib: latencies over time, their shares, and throughput."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from paceline.bench.samples import MS, Sample
from paceline.core.errors import ConfigError

KINDS = (".svg", ".png", ".html")
INCHES = (8.0, 12.0)
UNDATED = {"Date": None}  # the same run gives the same file

Point = tuple[float, float]


def check_kind(path: Path) -> None:
    if path.suffix not in KINDS:
        raise ConfigError(f"{path}: a plot must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")


def write(path: Path, samples: Sequence[Sample], lines: Sequence[str]) -> None:
    """Write a picture, or for .html a page with the report above it."""
    check_kind(path)
    drawing: Any = figure(samples)
    if path.suffix == ".png":
        drawing.savefig(path, dpi=150)
    elif path.suffix == ".svg":
        drawing.savefig(path, metadata=UNDATED)
    else:
        path.write_text(page(drawing, lines), encoding="utf-8")


def page(drawing: Any, lines: Sequence[str]) -> str:
    picture = StringIO()
    drawing.savefig(picture, format="svg", metadata=UNDATED)
    svg = picture.getvalue()
    report = escape("\n".join(lines))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline bench</title>'
        f"<pre>{report}</pre>\n{svg[svg.index('<svg') :]}</html>\n"
    )


def figure(samples: Sequence[Sample]) -> Figure:
    """Four charts one below the other; failed requests are left out."""
    good = [sample for sample in samples if not sample.error]
    drawing = Figure(figsize=INCHES, layout="constrained")
    charts: Any = drawing.subplots(4)
    first, whole, within, output = charts
    scatter(first, "Time to first token", [(one.sent_s, one.ttft_s * MS) for one in good])
    scatter(whole, "End-to-end latency", [(one.sent_s, one.e2e_s * MS) for one in good])
    draw_shares(within, good)
    output.set(title="Output", xlabel="s", ylabel="tokens/s")
    output.plot(*columns(tokens_per_second(good)))
    for chart in (first, whole, output):
        chart.set_ylim(0, 1.05 * chart.dataLim.ymax if good else None)
    for chart in charts:
        chart.grid(alpha=0.3)
    return drawing


def scatter(chart: Any, title: str, points: Sequence[Point]) -> None:
    chart.set(title=title, xlabel="sent at, s", ylabel="ms")
    chart.plot(*columns(points), ".")


def draw_shares(chart: Any, samples: Sequence[Sample]) -> None:
    chart.set(title="Requests within a time", xlabel="ms", ylabel="%", ylim=(0, 101))
    latencies = {
        "time to first token": [one.ttft_s * MS for one in samples],
        "time per output token": [one.tpot_s * MS for one in samples if one.tpot_s is not None],
        "end-to-end latency": [one.e2e_s * MS for one in samples],
    }
    for name, values in latencies.items():
        chart.plot(*columns(shares(values)), label=name)
    if any(latencies.values()):
        chart.set_xscale("log")
        for axis in (chart.xaxis.set_major_formatter, chart.xaxis.set_minor_formatter):
            axis("{x:g}")
    chart.legend()


def columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def shares(values: Sequence[float]) -> list[Point]:
    """For each value, how many percent are no larger."""
    ranked = sorted(values)
    return [(value, 100.0 * (rank + 1) / len(ranked)) for rank, value in enumerate(ranked)]


def tokens_per_second(samples: Sequence[Sample]) -> list[Point]:
    """The tokens of a request are spread evenly over its pieces."""
    seconds: dict[int, float] = defaultdict(float)
    for sample in samples:
        each = sample.output_tokens / len(sample.pieces_s)
        for at in sample.pieces_s:
            seconds[int(at)] += each
    last = max(seconds, default=-1)
    return [(float(second), seconds[second]) for second in range(last + 1)]
