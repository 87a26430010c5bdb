"""The bar of a batch of prompts, drawn with rich."""

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class TerminalBar:
    """Only `draw` redraws it, so it needs no thread."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("prompts  {task.fields[rates]}"),
            console=Console(file=stream),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total, rates="")
        self._bar.start()

    def draw(self, done: int, rates: str) -> None:
        self._bar.update(self._task, completed=done, rates=rates, refresh=True)

    def close(self) -> None:
        self._bar.stop()
