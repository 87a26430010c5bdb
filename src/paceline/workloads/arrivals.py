"""When requests come: all at once, or one by one at a mean rate."""

from math import isinf

import numpy as np

from paceline.core.arrays import F64


def arrival_times(
    count: int, rate: float, burstiness: float, random: np.random.Generator
) -> F64:  # [count]
    """Seconds since the first, at `rate` requests a second; an infinite rate means at once.

    The gaps are drawn from a gamma distribution: with a burstiness of 1 arrivals are Poisson,
    below 1 they come in bursts, above 1 they are more even.
    """
    if isinf(rate) or not count:
        return np.zeros(count)
    gaps = random.gamma(burstiness, 1.0 / (rate * burstiness), count)
    return np.cumsum(gaps) - gaps[0]
