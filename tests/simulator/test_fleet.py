"""Several simulated servers behind a router."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.simulator.fleet import FleetModel, SimulatedFleet, simulated
from paceline.simulator.loads import Phase, SyntheticLoad
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.senders import DEALERS, RoutedDealer
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer
from paceline.workloads.call import LengthDistribution, Segment
from tests.simulator.support import model
from tests.simulator.test_server import UNEVEN, columns, drawn_load, drawn_settings

SHARED = SyntheticLoad(
    80,
    (Phase(12.0),),
    input_len=LengthDistribution.parse("70-90"),
    output_len=LengthDistribution.parse("2-8"),
    prefix_len=64,
    prefixes=8,
).workload()


def same(one: SimulatedRun, other: SimulatedRun) -> None:
    assert one.log.outcome == other.log.outcome
    assert one.log.message == other.log.message
    assert one.explained == other.explained
    for (name, own), others in zip(columns(one).items(), columns(other).values(), strict=True):
        np.testing.assert_array_equal(own, others, name)


@pytest.mark.parametrize("seed", range(4))
def test_one_replica_is_a_server(seed: int) -> None:
    random = Random(seed)
    settings, load = drawn_settings(random), drawn_load(random, 25)
    model = ServerModel(UNEVEN, settings, 1 + seed % 3)
    told = {one.id: np.arange(one.output_len, dtype=np.int32) for one in load[: seed % 4]}
    alone = SimulatedServer(model, load, told, ["r3"]).run()
    same(alone, SimulatedFleet(model, FleetModel(), load, told, ["r3"]).run())


@pytest.mark.parametrize("seed", range(6))
def test_each_request_ends_in_one_replica(seed: int) -> None:
    random = Random(seed)
    settings, load = drawn_settings(random), drawn_load(random, 30)
    model = ServerModel(UNEVEN, settings, 1 + seed % 3)
    fleet = FleetModel(2 + seed % 3, sorted(DEALERS)[seed % 4])
    run = SimulatedFleet(model, fleet, load).run()
    log = run.log
    assert all(log.outcome), "each request ends"
    assert sorted(np.concatenate(run.parts).tolist()) == list(range(30)), "in one replica each"
    for number, one in enumerate(load):
        if one.follows >= 0:
            assert log.arrival[number] == log.ended[one.follows] + one.at_s


def test_the_router_finds_prefixes() -> None:
    reports = {
        router: SimulationReport.of(simulated(model(), FleetModel(4, router), SHARED), {})
        for router in DEALERS
    }
    hits = {router: report.total.hit_rate for router, report in reports.items()}
    assert hits["prefix"] > 1.2 * max(hits["turns"], hits["load"])
    for report in reports.values():
        assert report.total.completed == 80
        assert sum(one.requests for one in report.replicas) == 80
        output = sum(one.output_tokens_per_s for one in report.replicas)
        assert output == pytest.approx(report.total.output_tokens_per_s)
        assert all(0 < one.busy <= 1 for one in report.replicas)
    assert [one.requests for one in reports["turns"].replicas] == [20] * 4


def test_conversations() -> None:
    load = SyntheticLoad(10, (Phase(5.0),), turns=LengthDistribution("even", 3, 3)).workload()
    settings = {"num_blocks": 256, "max_model_len": 1024}
    moved: dict[str, int] = {}
    for router in ("sessions", "prefix", "turns"):
        run = simulated(model(**settings), FleetModel(3, router), load)
        place = {number: index for index, part in enumerate(run.parts) for number in part.tolist()}
        later = [(n, one.follows) for n, one in enumerate(load.requests) if one.follows >= 0]
        moved[router] = sum(place[number] != place[before] for number, before in later)
    assert moved["sessions"] == 0
    assert 2 * moved["prefix"] < moved["turns"]


def test_a_full_queue_sends_requests_on_once() -> None:
    """All share a prefix. A replica runs one request, queues one, and refuses the others."""
    load = [SimulatedRequest(f"{n}", 0.1 * n, (Segment("same", 40),), 90) for n in range(6)]
    refusing = model(max_num_seqs=1, max_num_queued_reqs=1)
    run = SimulatedFleet(refusing, FleetModel(2), load).run()
    outcome = np.array(run.log.outcome)
    assert [np.sum(outcome[part] == "length") for part in run.parts] == [2, 2]
    assert np.sum(outcome == "refused") == 2
    np.testing.assert_array_equal(run.log.arrival, [one.at_s for one in load])


@pytest.mark.parametrize(("replicas", "router"), [(0, "prefix"), (5000, "prefix"), (2, "best")])
def test_what_is_no_fleet(replicas: int, router: str) -> None:
    with pytest.raises(ConfigError, match=r"give 1 to 4,096|no router 'best': there are prefix"):
        FleetModel(replicas, router)


def test_the_router_knows_what_clients_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a request is dealt, those are open that were sent before and have not ended."""
    known: dict[int, list[int]] = {}
    deal = RoutedDealer.deal

    def spied(self: RoutedDealer, number: int, request: Request) -> int:
        known[number] = sorted(self._open)
        return deal(self, number, request)

    monkeypatch.setattr(RoutedDealer, "deal", spied)
    load = [
        replace(one, output_len=10 + 13 * number % 80, at_s=one.at_s / 2)
        for number, one in enumerate(SHARED.requests)
    ]
    log = SimulatedFleet(model(), FleetModel(3), load).run().log
    for number, open_ in known.items():
        time = log.arrival[number]
        assert open_ == np.flatnonzero((log.arrival < time) & (log.ended > time)).tolist()
    assert max(map(len, known.values())) > 8
