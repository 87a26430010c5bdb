"""Defers Ctrl-C to the end of a turn."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from signal import SIGINT, getsignal, signal
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def interrupts_deferred() -> Generator[Callable[[], None]]:
    """Defer the first interrupt to the end of the block, or to the next call of the function that
    the block gets. A second one is not deferred."""
    usual = getsignal(SIGINT)
    if not callable(usual) or current_thread() is not main_thread():
        yield lambda: None
        return
    came: list[FrameType | None] = []

    def note(_: int, frame: FrameType | None) -> None:
        came.append(frame)
        signal(SIGINT, usual)

    def handle() -> None:
        if came:
            usual(SIGINT, came.pop())
            signal(SIGINT, note)  # it did not raise

    signal(SIGINT, note)
    try:
        yield handle
    finally:
        signal(SIGINT, usual)
        for frame in came:
            usual(SIGINT, frame)
