"""How many random cases a test runs: few in every run, and more on request."""

import os

FACTOR = int(os.environ.get("PACELINE_TEST_SEEDS", "1"))


def seeds(count: int) -> range:
    """As many seeds, times the environment variable PACELINE_TEST_SEEDS."""
    return range(count * FACTOR)
