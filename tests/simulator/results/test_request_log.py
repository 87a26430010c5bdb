"""Gaps in narrow classes."""

import numpy as np
import pytest

from paceline.simulator.results.request_log import GapHistogram


def test_percentiles_are_exact_to_a_class() -> None:
    random = np.random.default_rng(1)
    gaps = random.gamma(2.0, 0.01, 5000)
    found = GapHistogram()
    for part in np.split(gaps, 50):
        found.add(part)
    for percent in (1, 50, 90, 99):
        exact = np.percentile(gaps, percent, method="inverted_cdf")
        assert found.percentile_s(percent) == pytest.approx(exact, rel=0.002)
    assert found.most_s == gaps.max()


def test_without_gaps() -> None:
    assert GapHistogram().percentile_s(99) == 0.0
