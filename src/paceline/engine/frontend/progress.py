"""Shows how a batch of prompts gets on: a bar on a terminal, one line at the end elsewhere."""

import shutil
import sys
from time import monotonic
from typing import TextIO

from paceline.engine.core.ports import Clock

REDRAW_S = 0.1
NARROWEST_BAR, WIDEST_BAR = 5, 40


class Progress:
    """Draws over its own last state, and leaves the cursor on a line of its own."""

    def __init__(
        self, total: int, *, stream: TextIO | None = None, clock: Clock = monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._begun = clock()
        self._drawn = float("-inf")

    def show(self, done: int, read: int, written: int) -> None:
        """Prompts done, tokens of prompts read, tokens written."""
        now = self._clock()
        if self._terminal and now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._stream.write(f"\r\x1b[K{self._line(done, read, written)}")
            self._stream.flush()

    def finish(self, done: int, read: int, written: int) -> None:
        again = "\r\x1b[K" if self._terminal else ""
        self._stream.write(f"{again}{self._line(done, read, written)}\n")
        self._stream.flush()

    def _line(self, done: int, read: int, written: int) -> str:
        passed = max(self._clock() - self._begun, 1e-9)
        text = f"{done}/{self._total} prompts  {written / passed:.1f} tokens/s out"
        text += f"  {read / passed:.1f} in"
        if not self._terminal:
            return text
        room = shutil.get_terminal_size().columns - len(f"[]  {text} ")
        width = min(max(room, NARROWEST_BAR), WIDEST_BAR)
        full = round(done / max(self._total, 1) * width)
        return f"[{'#' * full}{'-' * (width - full)}]  {text}"
