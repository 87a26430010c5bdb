"""The pages of reports and their charts."""

import re
from xml.etree import ElementTree

import pytest

from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.results.page import (
    Axis,
    line_chart,
    point_chart,
    point_labels,
    simulation_page,
)
from paceline.simulator.server import SimulatedServer
from tests.simulator.support import load, model


def test_a_page_stands_alone() -> None:
    work = load(20, tenants={"<a>": 1, "b": 1}).workload()
    report = SimulationReport.of(SimulatedServer(model(), work.requests).run(), {"ttft": 100.0})
    text = simulation_page("a title", report, {"ttft": 100.0}, ["about <it>"])
    assert text.count("<svg") == 4
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?://", text), "nothing is fetched"
    assert "prefers-color-scheme: dark" in text
    assert "about &lt;it&gt;" in text
    assert "&lt;a&gt;" in text
    assert "goodput" in text
    summary = text[: text.index("<h2>Over time</h2>")]
    assert summary.count('<div class="charts">') == 1, "figures stand beside each other"
    assert summary.count("<svg") == 1
    assert "left waiting by a step at most" in summary


@pytest.mark.parametrize(
    ("most", "ticks"), [(1.0, [0, 0.5, 1.0]), (90.0, [0, 20, 40, 60, 80]), (7, [0, 2, 4, 6])]
)
def test_ticks_are_round(most: float, ticks: list[float]) -> None:
    found = Axis(0.0, most, 0, 100).ticks
    assert found == pytest.approx(found)
    assert 2 <= len(found) <= 6
    assert found[0] == 0
    assert found[-1] <= most
    assert set(ticks) & set(found)


def test_a_logarithmic_axis() -> None:
    axis = Axis.of([0.0, 2.0, 2000.0], 0, 300, True)
    assert axis.ticks == [10, 100, 1000]
    assert (axis.px(2.0), axis.px(2000.0), axis.px(0.0)) == (0, 300, 0)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((5.0, 66.0), [5, 10, 20, 50]),
        ((3.0, 4.4), [3, 4]),
        ((30.0, 71.0), [30, 40, 50, 60, 70]),
        ((0.5, 7000.0), [1, 10, 100, 1000]),
    ],
)
def test_a_logarithmic_axis_of_few_decades_has_ticks_between_them(
    values: tuple[float, float], ticks: list[float]
) -> None:
    assert Axis.of(values, 0, 300, True).ticks == pytest.approx(ticks)


def test_charts_are_well_formed() -> None:
    lines = line_chart("A & B", "s", "n", {"one": [(0, 1), (1, 2)], "<two>": []})
    dots = point_chart("Points", "x", "y", {"a": (1.0, 2.0), "b": (0.0, 0.0)})
    for chart in (lines, dots, line_chart("Empty", "x", "y", {"none": []}, logarithmic=True)):
        ElementTree.fromstring(chart)
    assert lines.count("<polyline") == 2
    assert dots.count("<circle") == 2


def test_an_axis_ends_at_a_round_value() -> None:
    assert Axis(0.0, 852.0, 0, 100).rounded.most == 1000
    assert Axis(0.0, 1000.0, 0, 100).rounded.most == 1000


def test_the_names_of_close_points_do_not_overlap() -> None:
    labels = point_labels({"a": (400.0, 50.0), "b": (401.0, 50.0), "c": (60.0, 50.0)})
    places = [ElementTree.fromstring(label) for label in labels]
    assert [(one.text, one.get("text-anchor"), one.get("y")) for one in places] == [
        ("a", "end", "54"),
        ("b", "end", "68"),
        ("c", "start", "54"),
    ]


def test_a_caption_names_the_unit_once() -> None:
    assert "<figcaption>Output<span>tokens/s</span></figcaption>" in line_chart(
        "Output", "s", "tokens/s", {"all": []}
    )
    assert "<figcaption>Blocks</figcaption>" in line_chart("Blocks", "s", "blocks", {"used": []})
