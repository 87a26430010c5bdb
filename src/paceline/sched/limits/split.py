"""How a budget is split among rows in order."""

import numpy as np

from paceline.core.arrays import I32


def within_budget(want: I32, budget: int) -> I32:
    """Serve rows in order until the budget is spent; the last one served may be cut."""
    if int(want.sum()) <= budget:
        return want
    total = np.cumsum(want, dtype=np.int64)
    granted: I32 = np.clip(budget - (total - want), 0, want).astype(np.int32)
    return granted
