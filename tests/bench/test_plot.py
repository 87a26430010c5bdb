"""Plots of a run, as a picture and as a page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.bench.plot import charts, shares, tokens_per_second, write
from paceline.bench.samples import Sample
from paceline.core.errors import ConfigError
from tests.bench.support import made_up


def test_a_picture(tmp_path: Path) -> None:
    write(tmp_path / "a.svg", made_up(), ["a report"])
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    assert len(root.findall(".//{http://www.w3.org/2000/svg}g")) == 4


def test_a_page_has_the_report_too(tmp_path: Path) -> None:
    write(tmp_path / "a.html", made_up(), ["p99 < 3 ms"])
    text = (tmp_path / "a.html").read_text()
    assert "p99 &lt; 3 ms" in text
    assert "<svg" in text


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.svg and \.html"):
        write(tmp_path / "a.png", made_up(), [])


def test_what_is_drawn() -> None:
    first, whole, within, output = charts(made_up())
    assert len(first.series[0].points) == len(whole.series[0].points) == 9
    assert [series.name for series in within.series] == ["first token", "per token", "end to end"]
    assert all(series.points[-1][1] == 100.0 for series in within.series)
    assert sum(tokens for _, tokens in output.series[0].points) == pytest.approx(18.0)


def test_shares_and_seconds() -> None:
    assert shares([3.0, 1.0]) == [(1.0, 50.0), (3.0, 100.0)]
    one = Sample(0.0, 0.0, (0.5, 2.1), 2.1, 4, 6)
    assert tokens_per_second([one]) == [(0.0, 3.0), (1.0, 0.0), (2.0, 3.0)]
    assert tokens_per_second([]) == []


def test_a_run_without_answers_is_drawn(tmp_path: Path) -> None:
    write(tmp_path / "a.svg", made_up()[-1:], [])
    assert (tmp_path / "a.svg").stat().st_size > 1000
