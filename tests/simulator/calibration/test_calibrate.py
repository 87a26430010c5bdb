"""Calibration of a runner whose step times are known, and the fits that it takes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.plan import Admitted, Plan
from paceline.core.settings.config import Config
from paceline.simulator.calibration import grid, step_meter
from paceline.simulator.calibration.calibrate import (
    Bends,
    calibrate,
    drafted_errors,
    fit,
    not_negative_squares,
    relative_errors,
)
from paceline.simulator.calibration.grid import UNEVEN, DecodePoint, decode_points, mixed_points
from paceline.simulator.calibration.step_meter import Observation, StepMeter
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import HostTerms, Profile, StepTerms
from paceline.simulator.device.time_curve import RowRates, TimeCurve
from paceline.simulator.device.timed_runner import Drafting, step_times
from tests.simulator.calibration.support import CONFIG, TRUTH, KnownRunner


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_meter, "MOST", 3)
    monkeypatch.setattr(grid, "TIMES", 1)
    monkeypatch.setattr(grid, "MOST_TIMES", 1)
    monkeypatch.setattr(grid, "EACH", 4)


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
    assert "Fitted to 4 kinds of decode steps and 4 with prompts; 1 and 1 held back." in found.notes
    assert "left out for lack of time" in found.notes


def test_a_small_vocabulary_has_all_tokens_of_prompts() -> None:
    admitted = list[Admitted]()

    class Noting(KnownRunner):
        def launch(self, plan: Plan) -> None:
            admitted.extend(plan.admitted)
            super().launch(plan)

    runner = Noting()
    meter = StepMeter(runner, CONFIG, 1, runner.clock, vocab=101)
    meter.measure(DecodePoint(3, 500).parts)
    assert max(int(one.tokens.max()) for one in admitted) == 100


def test_a_model_that_is_too_short() -> None:
    runner, config = KnownRunner(), Config.of(max_model_len=64, num_blocks=64)
    with pytest.raises(ConfigError, match="only 0 kinds of steps fit into max_model_len 64"):
        calibrate(StepMeter(runner, config, 1, runner.clock), Profile(), limit_s=1.0)


def test_reading_and_computing_can_be_told_apart_where_memory_is_small() -> None:
    """At each number of rows there are two lengths of contexts at least, also beside prompts."""
    config = Config.of(
        max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=512, num_blocks=2900
    )
    even = [one for one in decode_points(config) if one.context != UNEVEN]
    contexts = {rows: {one.context for one in even if one.rows == rows} for rows in (1, 8, 48, 64)}
    assert all(len(of) > 1 for of in contexts.values()), contexts
    assert max(contexts[64]) < max(contexts[1])
    beside = [one for one in mixed_points(config) if one.beside >= 16]
    assert {one.context for one in beside} >= {128, 512}
    assert max(one.beside for one in beside) == 48


def test_steps_with_drafts_are_checked() -> None:
    config = Config.of(max_num_seqs=4, max_num_batched_tokens=64, num_speculative_tokens=3)
    measured = step_times(TRUTH, config, 2, Drafting(0.0))
    assert drafted_errors(TRUTH, config, 2, measured)["drafted_worst"] == 0.0
    (size, taken), *others = measured.drafted
    slower = replace(measured, drafted=((size, 2 * taken), *others, (4096, 1.0)))
    found = drafted_errors(TRUTH, config, 2, slower)
    assert found == {"drafted_mean": pytest.approx(0.5 / 3, rel=1e-3), "drafted_worst": 0.5}


@pytest.mark.parametrize("seed", range(8))
def test_no_neighbour_is_closer(seed: int) -> None:
    random = np.random.default_rng(seed)
    table, wanted = random.normal(size=(30, 6)), random.normal(size=30)
    found = not_negative_squares(table, wanted)
    assert (found >= 0).all()
    best = float(np.linalg.norm(table @ found - wanted))
    for _ in range(200):
        near = np.maximum(found + random.normal(scale=0.05, size=6), 0.0)
        assert np.linalg.norm(table @ near - wanted) >= best - 1e-9


def test_coefficients_that_are_known_are_found() -> None:
    table = np.random.default_rng(1).random((40, 5))
    known = np.array([3.0, 0.0, 1e-3, 0.5, 0.0])
    assert not_negative_squares(table, table @ known) == pytest.approx(known, abs=1e-9)


def test_a_curve_bends_at_its_knees_alone() -> None:
    decode = TRUTH.decode
    batches = [
        BatchSummary.decode(rows, context) for rows in (1, 8, 20, 64, 100) for context in (9, 900)
    ]
    observations = [Observation((one,), decode.seconds(one)) for one in batches]
    found = fit(observations, Bends({"positions": (8.0, 512.0), "contexts": ()}))
    assert relative_errors(found, observations).max() < 1e-3
    # Nothing was observed beyond 512 rows, so the last line goes on.
    assert [point[0] for point in found.positions.points] == [0.0, 8.0, 16.0]
    assert found.seconds(BatchSummary.decode(1000, 9)) == pytest.approx(
        decode.seconds(BatchSummary.decode(1000, 9)), rel=1e-3
    )


def test_sizes_and_uneven_contexts_are_found() -> None:
    """A device with graphs of some sizes, which waits for long contexts where there are many."""
    known = StepTerms(
        1e-3,
        positions=TimeCurve([[0, 0], [4, 2e-4], [8, 3e-4], [16, 2e-3]]),
        reading=RowRates([[4, 2e-8, 0.0], [8, 2e-8, 5e-8], [16, 3e-8, 2e-7]]),
        sizes=(4, 8, 16),
    )
    batches = [
        BatchSummary(rows, rows, rows, rows * mean, mean + over)
        for rows in (3, 4, 6, 8, 11, 16)
        for mean in (200, 1500)
        for over in (0, 900)
    ]
    observations = [Observation((one,), known.seconds(one)) for one in batches]
    found = fit(observations, Bends({}, sizes=(4, 8, 16), rows=(8,), each=True))
    assert relative_errors(found, observations).max() < 0.01
    assert found.sizes == known.sizes
    for (rows, *rates), (at, *wanted) in zip(
        found.reading.points, known.reading.points, strict=True
    ):
        assert (rows, rates) == (at, pytest.approx(wanted, rel=0.1, abs=3e-8))
