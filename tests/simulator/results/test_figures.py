"""The figures of a simulation."""

import json

import numpy as np
import pytest

from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.server import SimulatedRun, SimulatedServer
from tests.simulator.support import load, model


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    work = load(rate=30.0, tenants={"a": 2, "b": 1}).workload()
    return SimulatedServer(model(max_num_queued_reqs=4), work.requests).run()


def test_figures_are_those_of_the_requests(run: SimulatedRun) -> None:
    report = SimulationReport.of(run, {"ttft": 300.0})
    total, log = report.total, run.log
    good = np.array([outcome == "length" for outcome in log.outcome])
    ttft = 1e3 * (log.first - log.arrival)[good]
    assert total.ttft_ms is not None
    assert total.ttft_ms.p99 == pytest.approx(np.percentile(ttft, 99))
    assert total.completed == good.sum() < total.requests == 40
    assert total.outcomes["refused"] == 40 - good.sum()
    assert "already waiting" in report.messages["refused"]
    assert total.output_tokens == log.tokens[good].sum()
    assert total.attained == pytest.approx((ttft <= 300).sum() / 40)
    assert total.goodput == pytest.approx((ttft <= 300).sum() / total.duration_s)
    assert total.hit_rate > 0
    gaps = (log.last - log.first)[good & (log.tokens > 1)].sum()
    assert total.itl_ms is not None
    assert total.itl_ms.mean == pytest.approx(1e3 * gaps / (log.tokens[good] - 1).sum())
    assert total.itl_ms.median == pytest.approx(10.0, rel=0.002)


def test_tenants_add_up(run: SimulatedRun) -> None:
    report = SimulationReport.of(run, {})
    assert list(report.tenants) == ["a", "b"]
    assert sum(one.completed for one in report.tenants.values()) == report.total.completed
    assert report.total.goodput is None


def test_a_report_is_plain_values(run: SimulatedRun) -> None:
    found = json.loads(json.dumps(SimulationReport.of(run, {}).to_dict()))
    assert found["total_blocks"] == 64
    assert found["quantiles"]["time to first token"][99] <= found["ttft_ms"]["most"]
    assert max(found["timeline"]["waiting"]) == 4
    assert 0 < max(found["timeline"]["used_blocks"]) <= 64


def test_nothing_completed() -> None:
    work = load(2).workload()
    run = SimulatedServer(model(max_model_len=8), work.requests).run()
    report = SimulationReport.of(run, {"e2e": 1.0})
    assert (report.total.completed, report.total.ttft_ms, report.quantiles) == (0, None, {})
    assert report.total.outcomes == {"impossible": 2}
    assert report.total.attained == 0.0
