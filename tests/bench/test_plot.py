"""Plots of a run, as a picture and as a page."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from paceline.bench.plot import figure, shares, tokens_per_second, write
from paceline.bench.samples import Sample
from paceline.core.errors import ConfigError
from tests.bench.support import made_up


def points(chart: Any) -> list[list[float]]:
    """The y values of each line."""
    return [list(line.get_ydata()) for line in chart.get_lines()]


def test_a_picture_as_svg(tmp_path: Path) -> None:
    write(tmp_path / "a.svg", made_up(), ["a report"])
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_picture_as_png(tmp_path: Path) -> None:
    write(tmp_path / "a.png", made_up(), ["a report"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_has_the_report_too(tmp_path: Path) -> None:
    write(tmp_path / "a.html", made_up(), ["p99 < 3 ms"])
    text = (tmp_path / "a.html").read_text()
    assert "p99 &lt; 3 ms" in text
    assert text.count("<svg") == 1
    assert "<?xml" not in text


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.gif: a plot must end in \.svg, \.png or \.html"):
        write(tmp_path / "a.gif", made_up(), [])


def test_what_is_drawn() -> None:
    first, whole, within, output = figure(made_up()).axes
    assert [len(values) for values in points(first) + points(whole)] == [9, 9]
    assert [line.get_label() for line in within.get_lines()] == [
        "time to first token",
        "time per output token",
        "end-to-end latency",
    ]
    assert [values[-1] for values in points(within)] == [100.0] * 3
    assert sum(points(output)[0]) == pytest.approx(18.0)


def test_shares_and_seconds() -> None:
    assert shares([3.0, 1.0]) == [(1.0, 50.0), (3.0, 100.0)]
    one = Sample(0.0, 0.0, (0.5, 2.1), 2.1, 4, 6)
    assert tokens_per_second([one]) == [(0.0, 3.0), (1.0, 0.0), (2.0, 3.0)]
    assert tokens_per_second([]) == []


def test_a_run_without_answers_is_drawn(tmp_path: Path) -> None:
    write(tmp_path / "a.svg", made_up()[-1:], [])
    assert (tmp_path / "a.svg").stat().st_size > 1000
