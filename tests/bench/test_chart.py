"""Charts: round numbers on the axes, and points in their places."""

from xml.etree import ElementTree

import pytest

from paceline.bench.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Series, page, reach

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (7.0, [0, 2, 4, 6, 8]),
        (430.0, [0, 100, 200, 300, 400, 500]),
        (0.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_axes_have_round_numbers(most: float, ticks: list[float]) -> None:
    found, high = reach([0.0, most])
    assert found == pytest.approx(ticks)
    assert high == pytest.approx(ticks[-1])


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(page([chart]))


def test_dots_lie_where_their_values_are() -> None:
    root = drawn(Chart("t", "x", "y", [Series("s", [(0.0, 0.0), (10.0, 5.0)], dots=True)]))
    places = [
        (float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter(f"{SVG}circle")
    ]
    assert places == [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]


def test_powers_of_ten_are_evenly_spaced() -> None:
    points = [(1.0, 1.0), (10.0, 1.0), (100.0, 1.0)]
    root = drawn(Chart("t", "x", "y", [Series("s", points)], log_x=True))
    (line,) = root.iter(f"{SVG}polyline")
    xs = [float(point.split(",")[0]) for point in line.get("points", "").split()]
    assert xs == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]


def test_texts_are_escaped_and_empty_charts_are_drawn() -> None:
    root = drawn(Chart("a < b & c", "x", "y", [Series("s", [])], log_x=True))
    assert "a < b & c" in [text.text for text in root.iter(f"{SVG}text")]
