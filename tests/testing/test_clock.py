"""The virtual clock."""

from paceline.testing.runner import VirtualClock


def test_a_clock_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock()
    assert [clock(), clock()] == [0.0, 0.0]
    clock.advance_to(2.5)
    assert clock() == 2.5


def test_a_clock_never_runs_backwards() -> None:
    clock = VirtualClock(3.0)
    clock.advance_to(1.0)
    assert clock() == 3.0
