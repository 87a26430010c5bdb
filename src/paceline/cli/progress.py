"""Progress of many requests: a bar on a terminal, a few plain lines elsewhere."""

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any, TextIO

LINES = 10  # from beginning to end, on a stream that is not a terminal
MINUTE, HOUR = 60, 3600


class RequestProgress:
    """Call `show` with counts; they are printed with the rate and the time left.

    total    requests in all
    noun     what they are
    skipped  requests that were done before; they do not count for the rate
    """

    def __init__(
        self,
        total: int,
        noun: str = "requests",
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._total, self._noun, self._clock = total, noun, clock
        self._stream = stream or sys.stderr
        self._begun = clock()
        self._tenths = 0  # printed so far, where there is no terminal
        self._bar: Any = None

    def __enter__(self) -> "RequestProgress":
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            console = Console(file=self._stream)
            status = TextColumn("{task.fields[status]}", markup=False)
            self._bar = Progress(BarColumn(), status, console=console)
            self._bar.add_task("", total=self._total, status=f"0/{self._total} {self._noun}")
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, failed: int = 0, skipped: int = 0) -> None:
        if self._bar is not None:
            status = self.status(done, failed, skipped)
            self._bar.update(self._bar.task_ids[0], completed=done, status=status)
            return
        tenths = done * LINES // max(self._total, 1)
        if tenths > self._tenths:
            self._tenths = tenths
            if done > skipped:
                print(self.status(done, failed, skipped), file=self._stream, flush=True)

    def status(self, done: int, failed: int, skipped: int) -> str:
        passed = max(self._clock() - self._begun, 1e-9)
        rate = (done - skipped) / passed
        parts = [f"{done}/{self._total} {self._noun}", f"{failed} failed", f"{rate:.1f}/s"]
        if rate and done < self._total:
            parts.append(f"{duration((self._total - done) / rate)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """For example 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
