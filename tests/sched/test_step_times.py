"""What lies between the points of a measurement."""

import numpy as np

from paceline.core.capabilities import Points
from paceline.sched.speculation import Curve

POINTS: Points = ((1, 2.0), (3, 4.0), (7, 5.0))


def test_between_points_there_are_straight_lines_and_the_last_one_goes_on() -> None:
    found = Curve(POINTS).at(np.array([0, 1, 2, 3, 5, 7, 11]))
    assert found.tolist() == [2.0, 2.0, 3.0, 4.0, 4.5, 5.0, 6.0]
    assert Curve(POINTS).one(5) == 4.5


def test_a_larger_step_never_takes_less() -> None:
    curve = Curve(((1, 2.0), (2, 3.0), (4, 1.0), (8, 3.5)))
    assert [curve.one(size) for size in (2, 3, 4, 8)] == [3.0, 3.0, 3.0, 3.5]


def test_a_single_point_is_a_constant() -> None:
    assert Curve(((4, 2.0),)).at(np.array([1, 4, 100])).tolist() == [2.0, 2.0, 2.0]
