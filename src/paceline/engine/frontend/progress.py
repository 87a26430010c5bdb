"""Shows the progress of a batch of prompts: a bar on a terminal, one line at the end elsewhere."""

import sys
from contextlib import suppress
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import Protocol, TextIO

from paceline.engine.core.ports import Clock

REDRAW_S = 0.1


class Bar(Protocol):
    """Draws a batch on a terminal."""

    def draw(self, done: int, rates: str) -> None: ...

    def close(self) -> None: ...


class Progress:
    """A terminal has a bar, drawn with rich where it is installed, until `finish` or the exit."""

    def __init__(
        self, total: int, *, stream: TextIO | None = None, clock: Clock = monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._stream = stream or sys.stderr
        self._begun = clock()
        self._drawn = float("-inf")
        self._bar: Bar | None = None
        if self._stream.isatty():
            with suppress(ModuleNotFoundError):
                # Only a terminal needs rich, so it is imported for a terminal only.
                drawing = import_module("paceline.engine.frontend.progress_bar")
                self._bar = drawing.TerminalBar(total, self._stream)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Restore the terminal after an interrupt."""
        if self._bar is not None:
            self._bar.close()

    def show(self, done: int, read: int, written: int) -> None:
        """Prompts done, tokens of prompts read, tokens written."""
        now = self._clock()
        if self._bar is not None and now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._bar.draw(done, self._rates(read, written))

    def finish(self, done: int, read: int, written: int) -> None:
        rates = self._rates(read, written)
        if self._bar is not None:
            self._bar.draw(done, rates)
            self._bar.close()
        else:
            line = f"{done}/{self._total} prompts  {rates}"
            print(line, file=self._stream, flush=True)

    def _rates(self, read: int, written: int) -> str:
        passed = max(self._clock() - self._begun, 1e-9)
        return f"{written / passed:.1f} tokens/s out  {read / passed:.1f} in"
