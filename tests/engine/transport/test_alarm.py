"""An alarm wakes a thread that polls, however often it is rung."""

import select

from paceline.engine.transport.child_process import Alarm


def is_rung(alarm: Alarm) -> bool:
    return bool(select.select([alarm], [], [], 0)[0])


def test_it_is_readable_from_ringing_to_clearing() -> None:
    alarm = Alarm()
    alarm.clear()
    assert not is_rung(alarm)
    for _ in range(3):
        alarm.ring()
    assert is_rung(alarm)
    alarm.clear()
    assert not is_rung(alarm)
    alarm.close()


def test_a_full_pipe_blocks_nobody() -> None:
    alarm = Alarm()
    for _ in range(100_000):
        alarm.ring()
    assert is_rung(alarm)
    alarm.close()
