"""Shows how far a download is: a bar on a terminal, a few plain lines elsewhere."""

import shutil
import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TextIO

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all if known

REDRAW_S = 0.1
LINES = 10  # on a stream that is no terminal, from beginning to end
LINE_BYTES = 100_000_000  # between two lines, if the end is not known
NARROWEST_BAR, WIDEST_BAR = 5, 40
MB = 1_000_000
MINUTE_S = 60


def silent(_done: int, _total: int | None) -> None:
    """For those who do not want to know."""


class ProgressBar:
    """Draws each state once: on a terminal over the last one, otherwise below it."""

    def __init__(
        self, label: str, stream: TextIO | None = None, now: Callable[[], float] = monotonic
    ) -> None:
        self._label, self._now = label, now
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._begun: tuple[float, int] | None = None  # when, and what was there already
        self._drawn_at = float("-inf")
        self._drawn = -1  # the line that was written last; -1: none
        self._open = False

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Leave the cursor on a line of its own."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()

    def __call__(self, done: int, total: int | None) -> None:
        if self._begun is None:
            self._begun = (self._now(), done)
        if self._terminal:
            self._redraw(done, total)
        else:
            self._write_line(done, total)

    def _redraw(self, done: int, total: int | None) -> None:
        now = self._now()
        if done != total and now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at, self._open = now, True
        text = f"{self._amount(done, total)}  {self._pace(done, total)}".rstrip()
        if total:
            room = shutil.get_terminal_size().columns - len(f"{self._label}  []  {text} ")
            text = f"{drawn(done / total, min(max(room, NARROWEST_BAR), WIDEST_BAR))}  {text}"
        self._stream.write(f"\r\x1b[K{self._label}  {text}")
        self._stream.flush()

    def _write_line(self, done: int, total: int | None) -> None:
        line = done * LINES // total if total else done // LINE_BYTES
        if line > self._drawn:
            self._drawn = line
            self._stream.write(f"{self._label}: {self._amount(done, total)}\n")
            self._stream.flush()

    def _amount(self, done: int, total: int | None) -> str:
        return f"{done / MB:.1f} MB" if total is None else f"{done / MB:.1f} of {total / MB:.1f} MB"

    def _pace(self, done: int, total: int | None) -> str:
        assert self._begun is not None
        begun_at, begun_with = self._begun
        passed, gained = self._now() - begun_at, done - begun_with
        if passed <= 0 or gained <= 0:
            return ""
        pace = gained / passed
        left = "" if total is None else f"  {clock((total - done) / pace)} left"
        return f"{pace / MB:.1f} MB/s{left}"


def drawn(part: float, width: int) -> str:
    full = round(min(part, 1.0) * width)
    return "[" + "#" * full + "-" * (width - full) + "]"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), MINUTE_S)
    return f"{minutes}:{rest:02d}"
