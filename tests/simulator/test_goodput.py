"""Goodput of simulations: what is counted, how it grows with the rate, and which rate is held."""

from dataclasses import replace

import pytest

from paceline.simulator.capacity import LatencyLimits, highest_rate
from paceline.simulator.device.profile import Profile
from paceline.simulator.experiment import Experiment
from paceline.simulator.loads import Phase, SyntheticLoad, Workload
from paceline.simulator.results.figures import Figures, SimulationReport
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.workloads.call import LengthDistribution

LOAD = SyntheticLoad(
    120,
    (Phase(1.0),),
    input_len=LengthDistribution.parse("lognormal:600:1.0"),
    output_len=LengthDistribution.parse("20-60"),
)
TARGETS = {"ttft_target_ms": 500.0, "itl_target_ms": 40.0, "max_model_len": 131_072}


def model(**settings: object) -> ServerModel:
    return ServerModel(Profile.load("h200-qwen3-14b"), TARGETS | settings)


def simulated(rate: float, **settings: object) -> tuple[Figures, dict[str, int]]:
    load = LOAD.workload().at_rate(rate)
    load = Workload([replace(one, leaves_after_s=10.0) for one in load.requests])
    report = SimulationReport.of(SimulatedServer(model(**settings), load.requests).run(), {})
    return report.total, dict(report.stats)


def test_goodput_rises_with_the_rate_and_does_not_fall_in_overload() -> None:
    rates = (8.0, 20.0, 60.0)  # one server completes some 20 a second
    kept = [rate * (simulated(rate)[0].attained or 0.0) for rate in rates]
    assert kept[0] > 0.9 * rates[0]
    assert kept[2] >= 0.9 * max(kept)
    plain = rates[2] * (simulated(rates[2], policy="fcfs")[0].attained or 0.0)
    assert kept[2] > 3 * plain


def test_a_server_keeps_targets_from_its_first_request_on() -> None:
    """It measures step times when it starts; otherwise the first steps would be far too long."""
    assert LOAD.count > 40
    load = replace(LOAD, count=40).workload().at_rate(12.0)
    run = SimulatedServer(model(), load.requests).run()
    assert SimulationReport.of(run, {}).total.attained == 1.0


def test_clients_and_the_engine_count_alike_and_refused_requests_leave_no_queue() -> None:
    """The clients see the times of the front end too, so few judgements differ."""
    total, stats = simulated(60.0, refuse_late=True)
    assert total.attained == pytest.approx(stats["slo_attained"] / 120, abs=0.03)
    assert total.outcomes["timeout"] == pytest.approx(stats["slo_missed_queue"], abs=3)
    assert total.ttft_ms is not None
    assert total.ttft_ms.p99 < 700  # of those that were not refused


def test_capacity_answers_in_goodput() -> None:
    experiment = Experiment(replace(LOAD, count=40), model())
    found = highest_rate(experiment, LatencyLimits(attained=0.95), precision=0.3)
    assert found.best is not None
    assert (found.best.figures.attained or 0.0) >= 0.95
    broken = [one for one in found.trials if one.broken]
    assert broken
    assert all("meet their targets" in one.broken for one in broken)
