"""Medians of repeated runs, and tables of them in Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Figures = dict[str, float]


def medians(runs: Sequence[Figures]) -> Figures:
    return {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}


def table(lines: Sequence[dict[str, Any]], columns: Mapping[str, str]) -> str:
    """All lines in Markdown, with the columns that any of them has."""
    shown = [name for name in columns if any(name in line for line in lines)]
    rows = [["case", *(columns[name] for name in shown)], ["---"] * (len(shown) + 1)]
    rows += [[line["case"], *(cell(line.get(name)) for name in shown)] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(value: float | str | None) -> str:
    if not isinstance(value, int | float):
        return value or "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
