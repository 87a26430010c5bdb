"""Goodput of simulations: what is counted, how it grows with the rate, and which rate is held."""

from dataclasses import replace

import pytest

from paceline.simulator.capacity import LatencyLimits, highest_rate
from paceline.simulator.device.profile import Profile
from paceline.simulator.experiment import Experiment
from paceline.simulator.loads import Phase, SyntheticLoad, Workload
from paceline.simulator.results.figures import SimulationReport
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


def simulated(rate: float, source: SyntheticLoad = LOAD, **settings: object) -> SimulationReport:
    load = source.workload().at_rate(rate)
    load = Workload([replace(one, leaves_after_s=10.0) for one in load.requests])
    return SimulationReport.of(SimulatedServer(model(**settings), load.requests).run(), {})


@pytest.mark.parametrize(
    ("prompts", "full", "least"),
    [("lognormal:600:1.0", 16.0, 0.95), ("lognormal:6000:0.8", 2.0, 0.45)],
)
@pytest.mark.parametrize("refuse", [False, True])
def test_goodput_rises_with_the_rate_and_does_not_fall_in_overload(
    prompts: str, full: float, least: float, refuse: bool
) -> None:
    """From half of the rate that one server completes to three times as much; a third of the long
    prompts would be late alone."""
    source = replace(LOAD, input_len=LengthDistribution.parse(prompts))
    kept: list[float] = []
    for rate in (0.5 * full, full, 1.5 * full, 3.0 * full):
        report = simulated(rate, source, refuse_late=refuse)
        kept.append(rate * (report.total.attained or 0.0))
        assert kept[-1] >= 0.9 * max(kept)
        if refuse:  # those that cannot be in time leave the queue
            assert max(report.timeline["waiting"]) <= max(rate, 8.0)
    assert kept[0] >= least * 0.5 * full
    plain = simulated(3.0 * full, source, policy="fcfs").total.attained or 0.0
    assert kept[-1] > 3 * plain * 3.0 * full


def test_a_server_keeps_targets_from_its_first_request_on() -> None:
    """It measures step times when it starts; otherwise the first steps would be far too long."""
    assert LOAD.count > 40
    load = replace(LOAD, count=40).workload().at_rate(12.0)
    run = SimulatedServer(model(), load.requests).run()
    assert SimulationReport.of(run, {}).total.attained == 1.0


def test_clients_and_the_engine_count_alike_and_refused_requests_leave_no_queue() -> None:
    """The clients see the times of the front end too, so few judgements differ."""
    report = simulated(60.0, refuse_late=True)
    total, stats = report.total, report.stats
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
