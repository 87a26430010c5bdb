"""What is timed within a time, and what is timed again."""

from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest

from paceline.core.plan import StepResult
from paceline.core.settings.config import Config
from paceline.simulator.calibration import grid
from paceline.simulator.calibration.grid import (
    DecodePoint,
    Survey,
    Timed,
    decode_points,
    spread,
    typical,
)
from paceline.simulator.calibration.step_meter import Observation, StepMeter
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import Profile, StepTerms
from tests.simulator.calibration.support import TRUTH, KnownRunner

CONFIG = Config.of(max_model_len=2048, max_num_seqs=32, num_blocks=10_000)
POINTS = [replace(one, most=3) for one in decode_points(CONFIG)]
SLOW = Profile(decode=StepTerms(fixed_s=1.0), mixed=TRUTH.mixed)


class DisturbedRunner(KnownRunner):
    """Another program uses the machine every other twentieth of a second."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def waited_s(self) -> float:
        return self.waited

    def wait(self) -> StepResult:
        begin = self.now
        result = super().wait()
        if int(20 * begin) % 2:
            late = 3 * (self.now - begin)
            self.now += late
            self.waited += late
        return result


def worst(of: Timed) -> float:
    """How far off the runs are at most, as a share of the truth."""
    found = 0.0
    for one in (*of.kept, *of.held_back):
        truth = sum(map(TRUTH.device_s, one.batches)) / len(one.batches)
        found = max(found, abs(one.step_s - truth) / truth)
    return found


def test_points_are_timed_again_if_the_machine_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def surveyed() -> Timed:
        runner = DisturbedRunner()
        meter = StepMeter(runner, CONFIG, 1, runner.clock, waited_s=runner.waited_s)
        return Survey(meter, POINTS, 60.0).timed()

    again = surveyed()
    assert worst(again) < 0.01
    assert not again.busy
    for name in ("TIMES", "MOST_TIMES"):
        monkeypatch.setattr(grid, name, 1)
    once = surveyed()
    assert worst(once) > 0.5
    assert once.busy > 2


@pytest.mark.parametrize("limit_s", [60.0, 200.0])
def test_a_slow_device_keeps_to_the_time(limit_s: float) -> None:
    runner = KnownRunner(SLOW)
    meter = StepMeter(runner, CONFIG, 1, runner.clock)
    found = Survey(meter, POINTS, limit_s).timed()
    assert 0.8 * limit_s < runner.now < 1.1 * limit_s
    assert (found.left_out > 0) == (limit_s == 60.0)


def test_there_is_always_enough_for_a_fit_and_a_check() -> None:
    runner = KnownRunner(SLOW)
    meter = StepMeter(runner, CONFIG, 1, runner.clock)
    found = Survey(meter, POINTS, 0.0).timed()
    assert (len(found.kept), len(found.held_back)) == (4, 1)
    assert max(one.batches[0].rows for one in found.kept) < 4, "the cheapest ones"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 100])
def test_any_begin_of_the_order_covers_the_grid(count: int) -> None:
    points = [DecodePoint(rows, 1) for rows in range(count)]
    ordered = [cast(DecodePoint, point).rows for point in spread(points)]
    assert sorted(ordered) == list(range(count))
    if count == 100:
        begin = sorted(ordered[:20])
        assert max(high - low for low, high in pairwise([*begin, count])) <= 12


def test_a_run_that_was_held_up_does_not_count() -> None:
    batches = (BatchSummary.decode(1, 1),)
    runs = [Observation(batches, seconds) for seconds in (9.0, 1.0, 2.0)]
    assert typical(runs).seconds == 2.0
    assert typical(runs[:2]).seconds == 1.0
    busy = replace(runs[1], waited_s=0.2)
    assert typical([busy, runs[2]]).seconds == 2.0, "this one had the machine to itself"
    assert typical([busy, replace(runs[0], waited_s=1.0)]).seconds == 1.0, "none of them had"
    assert typical([runs[0], runs[0], runs[0], runs[1], runs[2]]).seconds == 2.0
