"""Wakes a thread that polls."""

import os
from contextlib import suppress

MOST = 4096  # alarms that one `clear` takes


class Alarm:
    """A file descriptor that is readable from `ring`, on any thread, to `clear`."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        for end in (self._readable, self._writable):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        return self._readable

    def ring(self) -> None:
        with suppress(BlockingIOError):  # a full pipe is readable already
            os.write(self._writable, b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):  # it was not rung
            os.read(self._readable, MOST)

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)
