"""Draws a run of a server: waits over time, shares within a time, tokens of each second."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

from paceline.bench.chart import Chart, Point, Series, page
from paceline.bench.samples import MS, Sample
from paceline.core.errors import ConfigError

KINDS = (".svg", ".html")


def check_kind(path: Path) -> None:
    if path.suffix not in KINDS:
        raise ConfigError(f"{path}: a plot is one of {' and '.join(KINDS)}")


def write(path: Path, samples: Sequence[Sample], lines: Sequence[str]) -> None:
    """As a picture, or as a page with the report above it."""
    check_kind(path)
    drawing = page(charts(samples))
    if path.suffix == ".html":
        told = escape("\n".join(lines))
        drawing = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline bench</title>'
            f"<pre>{told}</pre>\n{drawing}</html>\n"
        )
    path.write_text(drawing, encoding="utf-8")


def charts(samples: Sequence[Sample]) -> list[Chart]:
    good = [sample for sample in samples if not sample.error]
    first = [(sample.sent_s, sample.ttft_s * MS) for sample in good]
    whole = [(sample.sent_s, sample.e2e_s * MS) for sample in good]
    per_token = [sample.tpot_s * MS for sample in good if sample.tpot_s is not None]
    waits = {
        "first token": [wait for _, wait in first],
        "per token": per_token,
        "end to end": [wait for _, wait in whole],
    }
    return [
        Chart("Time to the first token", "sent at, s", "ms", [Series("", first, dots=True)]),
        Chart("End to end", "sent at, s", "ms", [Series("", whole, dots=True)]),
        Chart(
            "Share within a time",
            "ms",
            "%",
            [Series(name, shares(values)) for name, values in waits.items()],
            log_x=True,
        ),
        Chart("Output", "s", "tokens/s", [Series("", tokens_per_second(good))]),
    ]


def shares(values: Sequence[float]) -> list[Point]:
    """For each value, how many percent are no larger."""
    ranked = sorted(values)
    return [(value, 100.0 * (rank + 1) / len(ranked)) for rank, value in enumerate(ranked)]


def tokens_per_second(samples: Sequence[Sample]) -> list[Point]:
    """A piece of a request counts for as many tokens as the others of it."""
    seconds: dict[int, float] = defaultdict(float)
    for sample in samples:
        each = sample.output_tokens / len(sample.pieces_s)
        for at in sample.pieces_s:
            seconds[int(at)] += each
    last = max(seconds, default=-1)
    return [(float(second), seconds[second]) for second in range(last + 1)]
