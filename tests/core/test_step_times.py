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
