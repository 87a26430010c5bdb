"""Least squares with coefficients that are not negative, and curves with knees."""

import numpy as np
import pytest

from paceline.simulator.calibration.calibrate import (
    Bends,
    fit,
    not_negative_squares,
    relative_errors,
)
from paceline.simulator.calibration.step_meter import Observation
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import StepTerms
from paceline.simulator.device.time_curve import RowRates, TimeCurve
from tests.simulator.calibration.support import TRUTH


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
