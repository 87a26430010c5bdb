"""How long a client is told to stay away."""

import numpy as np

from paceline.server.scoreboard import LONGEST_WAIT_S, REMEMBERED_ENDS, RequestRate


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_is_what_the_queue_takes_at_the_pace_of_late() -> None:
    clock = Clock()
    rate = RequestRate(clock)
    assert rate.wait_s(1000) == 1
    for _ in range(10):
        rate.ended()
        clock.now += 0.5
    assert rate.wait_s(20) == 10
    assert rate.wait_s(0) == 1
    assert rate.wait_s(100_000) == LONGEST_WAIT_S
    clock.now += 45.0  # nothing ends any more, so it takes ten times as long
    assert rate.wait_s(10) == 50


def test_only_the_latest_ends_count() -> None:
    clock = Clock()
    rate = RequestRate(clock)
    rate.ended()
    clock.now += 1000.0
    for _ in range(REMEMBERED_ENDS):
        rate.ended()
        clock.now += 0.1
    assert rate.wait_s(100) == 10


def test_ends_of_all_processes_count() -> None:
    clock, rows = Clock(), np.zeros((3, RequestRate.SIZE))
    rates = [RequestRate(clock, rows, row) for row in range(3)]
    for at in range(3 * REMEMBERED_ENDS):
        rates[at % 2].ended()
        clock.now += 0.1
    assert [rate.wait_s(100) for rate in rates] == [10, 10, 10]
