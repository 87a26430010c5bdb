"""The bar of a batch of prompts, drawn with rich."""

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TerminalBar:
    """Only `draw` redraws it, so it needs no thread."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total, text="")
        self._bar.start()

    def draw(self, done: int, text: str) -> None:
        self._bar.update(self._task, completed=done, text=text, refresh=True)

    def close(self) -> None:
        self._bar.stop()
