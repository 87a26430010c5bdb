"""The rate that a replica holds, and the replicas that a load needs."""

import pytest

from paceline.core.errors import ConfigError
from paceline.simulator.capacity import LatencyLimits, highest_rate, replicas_needed
from paceline.simulator.experiment import Experiment
from tests.simulator.support import load, model

LIMITS = LatencyLimits({"ttft": 0.3, "itl": 0.2})


def test_the_rate_is_just_held() -> None:
    found = highest_rate(Experiment(load(40), model()), LIMITS, precision=0.1)
    assert found.best is not None
    assert not found.best.broken
    broken = [one for one in found.trials if one.broken]
    assert found.best.tried < min(one.tried for one in broken) <= 1.1 * found.best.tried
    assert "p99 is" in broken[0].broken


def test_more_load_needs_more_replicas() -> None:
    few, many = (
        replicas_needed(Experiment(load(40, rate), model()), LIMITS, 1, "turns")
        for rate in (2.0, 20.0)
    )
    assert few.best is not None
    assert many.best is not None
    assert few.best.tried < many.best.tried
    before = [one for one in many.trials if one.tried == many.best.tried - 1]
    assert before[0].broken


def test_nothing_holds() -> None:
    found = highest_rate(Experiment(load(2), model()), LatencyLimits({"ttft": 1e-6}))
    assert found.best is None
    assert found.fails_alone
    burst = highest_rate(Experiment(load(6, 1e9), model()), LatencyLimits({"ttft": 0.1}))
    assert burst.best is None
    assert not burst.fails_alone, "each on a replica of its own would hold"


def test_a_rate_that_does_not_last_is_no_answer() -> None:
    """Forty requests keep a limit of a minute at any rate, and say nothing about high ones."""
    patient = LatencyLimits({"ttft": 60.0})
    for rate in (1.0, 1000.0):
        found = highest_rate(Experiment(load(40, rate), model()), patient)
        assert found.best is not None
        assert found.best.lasts
        assert found.is_least
        assert found.best.figures.requests_per_s > 1.5
        beyond = [one for one in found.trials if one.tried > found.best.tried]
        assert beyond
        assert not any(one.broken or one.lasts for one in beyond)
        assert found.evenly is None


def test_no_more_replicas_are_tried_than_there_are_requests() -> None:
    found = replicas_needed(Experiment(load(3), model()), LatencyLimits({"ttft": 1e-6}), 1)
    assert found.best is None
    assert [one.tried for one in found.trials] == [1, 2, 3]


def test_a_load_needs_a_rate() -> None:
    with pytest.raises(ConfigError, match="all requests of the load come at the same time"):
        highest_rate(Experiment(load(1), model()), LIMITS)


@pytest.mark.parametrize("limits", [{}, {"ttft": 0.0}])
def test_wrong_limits(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"--ttft-p99|must be positive"):
        LatencyLimits(limits)
