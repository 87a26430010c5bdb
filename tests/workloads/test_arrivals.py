"""Arrivals at a rate: their mean, their spread, and that they can be had again."""

from math import inf

import numpy as np
import pytest

from paceline.workloads.call import arrival_times


def gaps(burstiness: float) -> np.ndarray:
    times = arrival_times(20_000, 5.0, burstiness, np.random.default_rng(1))
    assert times[0] == 0.0
    return np.diff(times)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_that_was_asked_for(burstiness: float) -> None:
    found = gaps(burstiness)
    assert (found >= 0).all()
    assert found.mean() == pytest.approx(1 / 5.0, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrival_times(3, inf, 1.0, np.random.default_rng(1)).tolist() == [0.0, 0.0, 0.0]


def test_none() -> None:
    assert arrival_times(0, 2.0, 1.0, np.random.default_rng(1)).tolist() == []


def test_the_same_seed_gives_the_same_times() -> None:
    assert gaps(1.0).tolist() == gaps(1.0).tolist()
