"""Calibration of a runner whose step times are known."""

import json
from itertools import pairwise
from typing import cast

import pytest

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.simulate.batch_summary import BatchSummary
from paceline.simulate.calibration import step_meter
from paceline.simulate.calibration.calibrate import calibrate, spread
from paceline.simulate.calibration.grid import DecodePoint
from paceline.simulate.calibration.step_meter import StepMeter
from paceline.simulate.profile import HostTerms, Profile
from tests.simulate.calibration.support import CONFIG, TRUTH, KnownRunner


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_meter, "MOST", 3)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_device_takes_is_found(depth: int) -> None:
    runner = KnownRunner()
    meter = StepMeter(runner, CONFIG, depth, runner.clock)
    about = Profile(name="known", host=HostTerms(plan_s=0.5, admit_s=0.25))
    found = calibrate(meter, about, limit_s=60.0)
    assert not runner.resident, "slots are given back"
    assert found.source == "measured"
    assert found.error["decode_worst"] < 0.02
    assert found.error["mixed_worst"] < 0.02
    for batch in (
        BatchSummary.decode(33, 700),
        BatchSummary.prompt(900, 100),
        BatchSummary(1, 1, 1, 64, copies=20),
        BatchSummary(1, 1, 1, 64, swap_in=20),
        BatchSummary(1, 1, 1, 64, swap_out=20),
    ):
        assert found.device_s(batch) == pytest.approx(TRUTH.device_s(batch), rel=0.03)
    assert found.host == HostTerms(plan_s=0.5, admit_s=0.25), "launching takes no time"
    assert Profile.of(json.loads(found.to_json())) == found


def test_points_are_left_out_when_the_time_is_up() -> None:
    runner = KnownRunner()
    found = calibrate(StepMeter(runner, CONFIG, 1, runner.clock), Profile(), limit_s=0.0)
    assert "left out for lack of time" in found.notes


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 100])
def test_any_begin_of_the_order_covers_the_grid(count: int) -> None:
    points = [DecodePoint(rows, 1) for rows in range(count)]
    ordered = [cast(DecodePoint, point).rows for point in spread(points)]
    assert sorted(ordered) == list(range(count))
    if count == 100:
        begin = sorted(ordered[:20])
        assert max(high - low for low, high in pairwise([*begin, count])) <= 12


def test_a_model_that_is_too_short() -> None:
    runner, config = KnownRunner(), Config.of(max_model_len=64, num_blocks=64)
    with pytest.raises(ConfigError, match="only 0 kinds of steps fit into max_model_len 64"):
        calibrate(StepMeter(runner, config, 1, runner.clock), Profile(), limit_s=1.0)
