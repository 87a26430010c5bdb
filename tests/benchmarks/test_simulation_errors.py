"""The comparison of real runs with simulations, on runs that are known."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.open_loop import RealRun, flat
from benchmarks.simulated_against_real import part
from benchmarks.simulation_errors import Check, checked, tables
from benchmarks.watched_steps import StepLog
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import Profile
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.server import ServerModel
from paceline.workloads.call import Segment

PROFILE = Profile.of(
    {
        "format": 1,
        "decode": {"fixed_s": 0.01},
        "mixed": {"fixed_s": 0.02},
        "host": {"commit_s": 0.002, "plan_s": 0.001},
    }
)
STEPS = [BatchSummary.prompt(64), *(BatchSummary.decode(1, 65 + at) for at in range(3))]


def known_run(slower: float = 1.0) -> tuple[RealRun, StepLog]:
    """One request alone, in an engine whose steps take so many times what the profile says."""
    begin, begun, landed = 100.0, list[float](), list[float]()
    for step in STEPS:
        begun.append(begin + 0.001)
        landed.append(begun[-1] + slower * PROFILE.device_s(step))
        begin = landed[-1] + 0.002
    log = StepLog(STEPS, *map(np.array, (begun, begun, begun, landed)))
    times = np.array(landed) + 0.002 - 100.0
    request = SimulatedRequest("0", 0.0, (Segment("a", 64),), len(STEPS))
    one, none = np.array([0.001]), np.zeros(1, np.int32)
    return RealRun("alone", 0.5, [request], 100.0, [times], times[-1:], one, one, none, none), log


def check_of(slower: float) -> Check:
    return checked(*known_run(slower), ServerModel(PROFILE, {"num_blocks": 64}))


def test_a_run_that_follows_the_profile_has_no_errors() -> None:
    check = check_of(1.0)
    for one in (*check.figures, *check.parts):
        if one.figure.startswith(("TTFT", "ITL", "output", "steps", "turn", "result")):
            assert one.simulated == pytest.approx(one.real, rel=0.003), one
    assert [line["error"] for line in check.steps if line["steps"]] == pytest.approx([0.0] * 4)


def test_slow_steps_are_named() -> None:
    check = check_of(2.0)
    errors = {one.figure: one.error for one in check.figures}
    assert errors["ITL mean ms"] == pytest.approx(13 / 23 - 1, abs=1e-3)
    assert errors["preemptions"] is None
    by_kind = {line["kind"]: line["error"] for line in check.steps}
    assert by_kind == pytest.approx({"decode": -0.5, "mixed": -0.5})
    text = tables([check])
    assert "| decode all | 3 | – | 20 | 10 | -50.0 % | +50.0 % |" in text
    assert "| preemptions | 0 | 0 | – |" in text


def test_runs_are_saved(tmp_path: Path) -> None:
    run, log = known_run()
    path = tmp_path / "run.npz"
    np.savez(path, **dict(flat([run])), **{f"steps.{k}": v for k, v in log.arrays().items()})
    with np.load(path) as saved:
        named = {name: saved[name] for name in saved.files}
    again, steps = RealRun.of(part(named, "0")), StepLog.of(part(named, "steps"))
    assert (again.name, again.share, again.begun) == ("alone", 0.5, 100.0)
    assert list(again.requests[0].content) == [Segment("a", 64)]
    assert again.times[0] == pytest.approx(run.times[0])
    assert steps.batches == STEPS
