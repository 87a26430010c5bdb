"""Seconds by amount, with knees."""

import pytest

from paceline.core.errors import ConfigError
from paceline.simulator.device.time_curve import TimeCurve


def test_lines_between_points_and_beyond_the_last() -> None:
    curve = TimeCurve([[1, 1.0], [3, 2.0], [5, 4.0]])
    assert [curve(x) for x in (0, 0.5, 1, 2, 3, 4, 5, 7)] == [0, 1, 1, 1.5, 2, 3, 4, 6]


def test_one_point_is_a_fixed_cost() -> None:
    assert [TimeCurve([[1, 0.5]])(x) for x in (0, 1, 9)] == [0, 0.5, 0.5]


@pytest.mark.parametrize(
    "points", [[], [[1]], [[2, 1], [1, 2]], [[1, 2], [2, 1]], [[-1, 0]], [["x", 1]], 5]
)
def test_points_that_make_no_curve(points: object) -> None:
    with pytest.raises(ConfigError, match="a curve is"):
        TimeCurve(points)  # pyright: ignore[reportArgumentType]
