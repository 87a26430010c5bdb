"""Write every call that changes a scheduler to a file, so that the run can be replayed."""

from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

from paceline.core.config import Config
from paceline.core.errors import PacelineError
from paceline.core.events import CacheEvent
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request
from paceline.sched.explain.journal import Gate
from paceline.sched.replay.calls import Commitment, Scores, Submission, failed_rows
from paceline.sched.replay.fingerprint import Fingerprint
from paceline.sched.replay.preamble import Preamble
from paceline.sched.replay.records import (
    MAGIC,
    STEP,
    TIME,
    RecordingError,
    RecordKind,
    arguments,
    record,
)
from paceline.sched.scheduler import Scheduler
from paceline.sched.stats import Stats
from paceline.sched.swapping import Rates
from paceline.sched.view import SchedulerView

T = TypeVar("T")

LIMIT_BYTES = 256 << 20


def opened(path: Path) -> FileIO:
    """A new file. An earlier recording there is kept beside it, as the last thing known."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as there:
            if there.read(len(MAGIC)) != MAGIC:
                raise RecordingError(f"{path} exists and is no recording; it is left alone")
        path.replace(path.with_name(f"{path.name}.old"))
    return path.open("wb", buffering=0)


ENDED_BYTES = len(record(RecordKind.ENDED, b"closed"))


class Recorder:
    """A scheduler whose every change is in the file, in order, up to `ended`.

    The file never grows beyond `limit_bytes`. When it is full, or cannot be written,
    `ended` says so and the scheduler goes on unrecorded: recording never stops service.
    Every record reaches the operating system at once, so a killed process loses nothing
    but the digest of its last plan. `commit`, `fail` and `retry` take the plans that
    `plan` returned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        path: str | PathLike[str],
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        if not scheduler.idle or scheduler.stats != Stats() or scheduler.residency.now:
            raise RecordingError("a recording begins with a scheduler that was never used")
        begin = Preamble.of(scheduler.config).encoded()
        if limit_bytes < len(begin) + ENDED_BYTES:
            raise RecordingError(f"limit_bytes is {limit_bytes}; the settings take {len(begin)}")
        self.scheduler = scheduler
        self.path = Path(path)
        self.limit_bytes = limit_bytes
        self.size_bytes = 0  # of the file, with what is held back
        self.ended = ""  # why nothing more is written: full, closed, or what failed
        self._file = opened(self.path)
        self._held: list[bytes] = []  # what came of the last call; goes out with the next
        self._fingerprint = Fingerprint()
        self._hold(begin)
        self._flush()

    def close(self) -> None:
        """End the recording; the scheduler can still be used."""
        if not self.ended:
            self._end("closed")

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # -- what changes the scheduler -----------------------------------------

    def submit(self, request: Request, now: float, parked: str = "") -> None:
        if not self.ended:
            self._write(Submission(request, now, parked).encoded())
        self._call(lambda: self.scheduler.submit(request, now, parked))

    def abort(self, request_id: str, now: float, child: int | None = None) -> bool:
        self._note(RecordKind.ABORT, request_id, now, *(() if child is None else (child,)))
        return self._call(lambda: self.scheduler.abort(request_id, now, child))

    def park(self, request_id: str, reason: str, now: float) -> bool:
        self._note(RecordKind.PARK, request_id, reason, now)
        return self._call(lambda: self.scheduler.park(request_id, reason, now))

    def wake(self, request_id: str, now: float) -> bool:
        self._note(RecordKind.WAKE, request_id, now)
        return self._call(lambda: self.scheduler.wake(request_id, now))

    def plan(self, now: float) -> Plan:
        if self.ended:
            return self.scheduler.plan(now)
        self._write(record(RecordKind.PLAN, TIME.pack(now)))
        plan = self._call(lambda: self.scheduler.plan(now))
        digests = STEP.pack(plan.step) + self._fingerprint.of(plan)
        self._hold(record(RecordKind.PLANNED, digests))
        return plan

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs:
        if self.ended:
            return self.scheduler.commit(plan, result, now)
        if scores := Scores.of(result):
            self._write(scores.encoded())
        if result.failed:
            self._write(failed_rows(result.failed))
        self._write(Commitment(plan.step, now, len(plan.rows), result).encoded())
        return self._call(lambda: self.scheduler.commit(plan, result, now))

    def fail(self, plan: Plan, now: float, message: str = "the step failed") -> Outputs:
        self._note(RecordKind.FAIL, plan.step, now, message)
        return self._call(lambda: self.scheduler.fail(plan, now, message))

    def retry(self, plan: Plan, now: float) -> None:
        self._note(RecordKind.RETRY, plan.step, now)
        self._call(lambda: self.scheduler.retry(plan, now))

    def pause(self, mode: Literal["new", "all"] = "new") -> None:
        self._note(RecordKind.PAUSE, mode)
        self._call(lambda: self.scheduler.pause(mode))

    def resume(self) -> None:
        self._note(RecordKind.RESUME)
        self._call(self.scheduler.resume)

    def drain(self) -> None:
        self._note(RecordKind.DRAIN)
        self._call(self.scheduler.drain)

    def reset_prefix_cache(self, reset_running_requests: bool = False, now: float = 0.0) -> bool:
        self._note(RecordKind.RESET_PREFIX_CACHE, reset_running_requests, now)
        return self._call(lambda: self.scheduler.reset_prefix_cache(reset_running_requests, now))

    def measure(self, rates: Rates) -> None:
        self._note(RecordKind.MEASURE, rates.recompute_tokens_per_s, rates.swap_blocks_per_s)
        self._call(lambda: self.scheduler.measure(rates))

    # -- what only asks -----------------------------------------------------

    @property
    def config(self) -> Config:
        return self.scheduler.config

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    @property
    def unfinished(self) -> int:
        return self.scheduler.unfinished

    @property
    def view(self) -> SchedulerView:
        return self.scheduler.view

    @property
    def queue_room(self) -> int:
        return self.scheduler.queue_room

    @property
    def stats(self) -> Stats:
        return self.scheduler.stats

    @property
    def gate(self) -> Gate | None:
        return self.scheduler.gate

    @property
    def usage(self) -> float:
        return self.scheduler.usage

    def cache_events(self) -> list[CacheEvent]:
        return self.scheduler.cache_events()

    def explain(self, request_id: str) -> str:
        return self.scheduler.explain(request_id)

    def why(self) -> dict[str, str]:
        return self.scheduler.why()

    def snapshot(self) -> dict[str, Any]:
        return self.scheduler.snapshot()

    def check(self) -> None:
        self.scheduler.check()

    # -- writing ------------------------------------------------------------

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except PacelineError as error:
            self._hold(record(RecordKind.REFUSED, str(error).encode(errors="replace")))
            raise

    def _note(self, kind: RecordKind, *values: Any) -> None:
        if not self.ended:
            self._write(record(kind, arguments(*values)))

    def _hold(self, content: bytes) -> None:
        """Let something go out with the next call, if there is room for it."""
        if self.ended:
            return
        if self.size_bytes + len(content) + ENDED_BYTES > self.limit_bytes:
            self._end("full")
            return
        self._held.append(content)
        self.size_bytes += len(content)

    def _write(self, content: bytes) -> None:
        self._hold(content)
        if not self.ended:
            self._flush()

    def _flush(self) -> None:
        content = b"".join(self._held)
        self._held.clear()
        try:
            written = self._file.write(content)
        except OSError as error:
            self._stop(f"failed: {error}")
            return
        if written != len(content):
            self._stop(f"failed: {written} of {len(content)} bytes were written")

    def _end(self, reason: str) -> None:
        ending = record(RecordKind.ENDED, reason.encode())
        self._held.append(ending)
        self.size_bytes += len(ending)
        self._flush()
        if not self.ended:
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        self.ended = reason
        self._held.clear()
        with suppress(OSError):
            self._file.close()
