"""Shows the progress of a batch of prompts: a bar on a terminal, one line at the end elsewhere."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import TextIO

from paceline.engine.loop.ports import Clock

REDRAW_S = 0.1


@dataclass(slots=True)
class PromptCounts:
    """How far a batch of prompts is."""

    done: int = 0
    failed: int = 0  # of those that are done
    read: int = 0  # tokens of the prompts that are done
    written: int = 0  # tokens of their outputs


class TerminalBar:
    """The bar of a batch on a terminal, drawn with rich. Only `draw` redraws it, so it needs no
    thread."""

    def __init__(self, total: int, stream: TextIO) -> None:
        # Only a terminal needs rich, so it is imported for a terminal only.
        console, progress = import_module("rich.console"), import_module("rich.progress")
        self._bar = progress.Progress(
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}"),
            progress.TimeRemainingColumn(),
            console=console.Console(file=stream),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total, text="")
        self._bar.start()

    def draw(self, done: int, text: str) -> None:
        self._bar.update(self._task, completed=done, text=text, refresh=True)

    def close(self) -> None:
        self._bar.stop()


class Progress:
    """A terminal has a bar, drawn with rich where it is installed, until `finish` or the exit."""

    def __init__(
        self, total: int, *, stream: TextIO | None = None, clock: Clock = monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._stream = stream or sys.stderr
        self._begun = clock()
        self._drawn = float("-inf")
        self._bar: TerminalBar | None = None
        if self._stream.isatty():
            with suppress(ModuleNotFoundError):
                self._bar = TerminalBar(total, self._stream)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_error: object) -> None:
        """Restore the terminal after an interrupt."""
        if self._bar is not None:
            self._bar.close()

    def show(self, counts: PromptCounts) -> None:
        now = self._clock()
        if self._bar is not None and now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._bar.draw(counts.done, self._text(counts))

    def finish(self, counts: PromptCounts) -> None:
        if self._bar is not None:
            self._bar.draw(counts.done, self._text(counts))
            self._bar.close()
        else:
            line = f"{counts.done}/{self._total} {self._text(counts)}"
            print(line, file=self._stream, flush=True)

    def _text(self, counts: PromptCounts) -> str:
        passed = max(self._clock() - self._begun, 1e-9)
        failed = f"  {counts.failed} failed" if counts.failed else ""
        rates = f"{counts.written / passed:.1f} tokens/s out  {counts.read / passed:.1f} in"
        return f"prompts{failed}  {rates}"
