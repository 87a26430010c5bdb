"""Gaps in narrow classes."""

import numpy as np
import pytest

from paceline.simulate.gap_histogram import GapHistogram


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


def test_a_weight_counts_each_gap_so_often() -> None:
    found = GapHistogram()
    found.add(np.array([0.1]), np.array([99]))
    found.add(np.array([5.0]))
    assert int(found.counts.sum()) == 100
    assert found.percentile_s(98) == pytest.approx(0.1, rel=0.002)
    assert found.percentile_s(100) == 5.0


def test_without_gaps() -> None:
    assert GapHistogram().percentile_s(99) == 0.0
