"""The CPU cores that this process may use."""

import os


def usable_cores() -> int:
    """Fewer than the machine has, if the system limits this process to some of them."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
