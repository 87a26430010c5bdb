"""Shows on a terminal what a model that is being loaded waits for."""

import logging
import sys
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from paceline.hub.progress_bar import ProgressBar

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
