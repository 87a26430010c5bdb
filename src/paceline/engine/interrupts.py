"""Ctrl-C comes between the turns of a loop, and not inside one."""

from collections.abc import Generator
from contextlib import contextmanager
from signal import SIGINT, getsignal, signal
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def interrupts_deferred() -> Generator[None]:
    """An interrupt waits until this has ended; a second one does not."""
    usual = getsignal(SIGINT)
    if not callable(usual) or current_thread() is not main_thread():
        yield
        return
    came: list[FrameType | None] = []

    def note(_: int, frame: FrameType | None) -> None:
        came.append(frame)
        signal(SIGINT, usual)

    signal(SIGINT, note)
    try:
        yield
    finally:
        signal(SIGINT, usual)
        for frame in came:
            usual(SIGINT, frame)
