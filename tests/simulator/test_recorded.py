"""Recordings as loads."""

from pathlib import Path

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.simulator.experiment import Experiment, Variant
from paceline.simulator.recorded import RecordedLoad, is_recording
from paceline.testing.loop import Loop
from paceline.testing.oracle import OracleRunner
from paceline.testing.runner import SimulatedDevice
from tests.simulator.support import SMALL, model


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tenants on the oracle; one client leaves."""
    path = tmp_path_factory.mktemp("recorded") / "run.paceline"
    requests = [
        Request(
            id=f"r{n}",
            prompt=range(100 * n + 1, 100 * n + 21),
            max_tokens=10,
            arrival=50.0 + n,
            tenant="ab"[n % 2],
        )
        for n in range(8)
    ]
    with RecordedScheduler.create(**SMALL, record=str(path)) as scheduler:
        oracle = OracleRunner(SMALL["num_blocks"], SMALL["block_size"], 1000)
        device = SimulatedDevice(oracle.run, lambda plan: 0.4)
        for turn in Loop(scheduler, device).run(requests):
            if turn.time > 56 and scheduler.view.is_live("r5"):
                scheduler.abort("r5", turn.time)
    return path


def test_requests_have_their_lengths_times_and_tenants(recording: Path) -> None:
    load = RecordedLoad(recording)
    work = load.workload()
    assert is_recording(recording)
    assert [one.id for one in work.requests] == [f"r{n}" for n in range(8)]
    assert [one.at_s for one in work.requests] == list(range(8))
    assert work.requests[3].tenant == "b"
    assert len(work.outputs["r3"]) == work.requests[3].output_len == 10
    assert work.requests[5].leaves_after_s < 5
    assert load.settings["num_blocks"] == SMALL["num_blocks"]
    times = load.times["r0"]
    assert times.ttft_s is not None
    assert times.e2e_s is not None
    assert 0 < times.ttft_s < times.e2e_s
    assert load.times["r5"].e2e_s is None


def test_a_request_that_came_from_another_engine_has_all_of_its_output(tmp_path: Path) -> None:
    """And a sequence that ended there is no request here."""
    path = tmp_path / "run.paceline"
    one = Request(id="a", prompt=range(20), max_tokens=10, arrival=1.0, generated=((5, 6, 7),))
    two = Request(id="b", prompt=range(20), max_tokens=10, arrival=2.0, n=2, generated=(None, (8,)))
    with RecordedScheduler.create(**SMALL, record=str(path)) as scheduler:
        oracle = OracleRunner(SMALL["num_blocks"], SMALL["block_size"], 1000)
        for _ in Loop(scheduler, SimulatedDevice(oracle.run, lambda plan: 0.4)).run([one, two]):
            pass
    load = RecordedLoad(path)
    work = load.workload()
    assert [one.id for one in work.requests] == ["a", "1_b"]
    assert [one.output_len for one in work.requests] == [10, 10]
    assert work.outputs["a"][:3].tolist() == [5, 6, 7]
    assert work.outputs["1_b"][0] == 8
    assert {one.ttft_s for one in load.times.values()} == {None}


def test_a_part_of_a_recording(recording: Path) -> None:
    load = RecordedLoad(recording, count=3, speed=4.0, max_input_len=7, max_output_len=2)
    work = load.workload()
    assert [one.at_s for one in work.requests] == [0.0, 0.25, 0.5]
    assert {(one.input_len, one.output_len) for one in work.requests} == {(7, 2)}
    assert not load.ending


def test_a_recording_that_is_cut_says_so(recording: Path, tmp_path: Path) -> None:
    part = tmp_path / "cut.paceline"
    part.write_bytes(recording.read_bytes()[:-20])
    load = RecordedLoad(part)
    assert load.workload().requests
    assert "the file was cut" in load.ending


def test_a_recording_runs_under_another_policy(recording: Path) -> None:
    load = RecordedLoad(recording)
    experiment = Experiment(load, model(**load.settings), explained=("r4",))
    found = experiment.run(Variant("fair", {"policy": "fair"}))
    assert found.report.total.completed >= 7
    assert np.isfinite(found.e2e_s).sum() == found.report.total.completed
    assert "'r4':" in found.explained["r4"]


def test_what_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("TIMESTAMP")
    assert not is_recording(path)
    with pytest.raises(ConfigError, match="not a recording"):
        RecordedLoad(path).workload()
    with pytest.raises(ConfigError, match="cannot be read"):
        is_recording(tmp_path / "none")
