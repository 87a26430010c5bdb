"""Shows the progress of a download: a bar on a terminal, a few plain lines elsewhere."""

import logging
import sys
from threading import Lock
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.spinner import Spinner
from rich.text import Text

LINES = 10  # from beginning to end, on a stream that is not a terminal
LINE_BYTES = 100_000_000  # between two lines, if the end is not known
MB = 1_000_000


class ProgressBar:
    """Call it with the bytes done and the bytes in all, from any thread.

    The bar is closed when all bytes are done, so a program may go on within the `with` block.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream)
        self._bar: Progress | None = None  # from the first call on, on a terminal
        self._lock = Lock()
        self._written = -1  # the last line that was written elsewhere; -1: none

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None) -> None:
        with self._lock:
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                self._draw(done, total)
            else:
                self._write_line(done, total)

    def _draw(self, done: int, total: int | None) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.add_task(self._label, completed=done, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        if done == total:
            self._bar.stop()

    def _write_line(self, done: int, total: int | None) -> None:
        line = done * LINES // total if total else done // LINE_BYTES
        if line > self._written:
            self._written = line
            in_all = "" if total is None else f" of {total / MB:.1f}"
            print(f"{self._label}: {done / MB:.1f}{in_all} MB", file=self._stream, flush=True)


LOGGER = "paceline"
FIRST = "starting"  # until the first message: importing torch takes longest


class LoadingStatus(logging.Handler):
    """The latest message of the log beside a spinner, and the bar of a download in its place.

    It takes the place of `ProgressBar` where a program prints nothing until the model is loaded.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        super().__init__(logging.INFO)
        self._label, console = label, Console(file=stream or sys.stderr)
        self._bar = ProgressBar(label, stream)
        is_shown = console.is_terminal and not console.is_dumb_terminal
        self._spinner = Spinner("dots", self._text(FIRST))
        self._live = Live(self._spinner, console=console, transient=True) if is_shown else None
        self._level = logging.NOTSET  # of the logger, before

    def __enter__(self) -> "LoadingStatus":
        self._bar.__enter__()
        if self._live is not None:
            logger = logging.getLogger(LOGGER)
            self._level = logger.level
            logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
            logger.addHandler(self)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()
            logging.getLogger(LOGGER).removeHandler(self)
            logging.getLogger(LOGGER).setLevel(self._level)
        self._bar.__exit__()

    def __call__(self, done: int, total: int | None) -> None:
        """Report a download: bytes done, and in all if known."""
        if self._live is not None and done != total:
            self._live.stop()
        self._bar(done, total)
        if self._live is not None and done == total:
            self._live.start(refresh=True)

    def emit(self, record: logging.LogRecord) -> None:
        assert self._live is not None
        if record.levelno < logging.WARNING:
            self._spinner.update(text=self._text(record.getMessage()))
            self._live.refresh()
        elif not logging.root.handlers:  # else the program prints its log
            self._live.console.print(self._text(record.getMessage()))

    def _text(self, message: str) -> Text:
        return Text(f"{self._label}: {message}")
