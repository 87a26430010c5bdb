"""Distributions of lengths."""

import numpy as np
import pytest

from paceline.workloads.call import LengthDistribution


@pytest.mark.parametrize(
    ("text", "median"),
    [("128", 128), ("64-256", 160), ("lognormal:900:0.8", 900), ("exponential:200", 139)],
)
def test_lengths_have_their_median(text: str, median: float) -> None:
    lengths, random = LengthDistribution.parse(text), np.random.default_rng(0)
    drawn = [lengths.draw(random) for _ in range(2000)]
    assert np.median(drawn) == pytest.approx(median, rel=0.1)
    assert min(drawn) >= 1


@pytest.mark.parametrize("text", ["", "x", "9-3", "lognormal:5", "lognormal:0:1", "exponential:-1"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ValueError, match="write 128, 64-256"):
        LengthDistribution.parse(text)
