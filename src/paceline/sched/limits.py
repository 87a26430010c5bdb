"""What clips a row: pure functions over columns, combined by taking the minimum."""

import numpy as np

from paceline.core.arrays import I32


def within_threshold(want: I32, threshold: int) -> I32:
    """At most `threshold` positions of one row; 0 means no limit."""
    return np.minimum(want, threshold) if threshold else want


def within_length(want: I32, planned: I32, limit: I32) -> I32:
    """Never compute the position whose sample would lie past the limit."""
    return np.minimum(want, np.maximum(limit - 1 - planned, 0))


def within_budget(want: I32, budget: int) -> I32:
    """Serve rows in order until the budget is spent; the last one served may be cut."""
    if int(want.sum()) <= budget:
        return want
    total = np.cumsum(want, dtype=np.int64)
    granted: I32 = np.clip(budget - (total - want), 0, want).astype(np.int32)
    return granted


def whole_rows(want: I32, budget: int) -> I32:
    """Serve rows in order as long as all of a row fits; only the first one may be cut."""
    total = np.cumsum(want, dtype=np.int64)
    if not len(want) or total[-1] <= budget:
        return want
    granted = np.where(total <= budget, want, 0)
    if not granted.any():
        first = int(np.flatnonzero(want)[0])
        granted[first] = min(int(want[first]), budget)
    return granted
