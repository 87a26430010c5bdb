"""Measured times of steps."""

import pytest

from paceline import ConfigError
from paceline.core.capabilities import Points, StepTimes

POINTS: Points = ((1, 2.0), (3, 4.0), (7, 5.0))


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ((2, 1.0), (1, 2.0)),
        ((1, 1.0), (1, 2.0)),
        ((0, 1.0),),
        ((1, 0.0),),
        ((1, float("nan")),),
    ],
)
def test_points_that_make_no_sense_are_refused(wrong: Points) -> None:
    with pytest.raises(ConfigError, match="plain step times are"):
        StepTimes(wrong, POINTS)
    with pytest.raises(ConfigError, match="drafted step times are"):
        StepTimes(POINTS, wrong)
    if wrong:
        with pytest.raises(ConfigError, match="least step times are"):
            StepTimes(POINTS, POINTS, wrong)


def test_measured_times_are_in_the_order_of_positions() -> None:
    measured = StepTimes.measured({2: 1.5, 1: 1.0}, {4: 2.0}, {2: 1.75})
    assert measured == StepTimes(((1, 1.0), (2, 1.5)), ((4, 2.0),), ((2, 1.75),))
    assert StepTimes.measured({1: 1.0}, {}) is None
