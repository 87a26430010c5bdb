"""Write every call that changes a scheduler to a file, so that the run can be replayed."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import IntEnum
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from json import JSONEncoder
from os import PathLike
from pathlib import Path
from struct import Struct
from typing import Any, Literal, TypeVar
from zlib import crc32

import numpy as np

from paceline.core.config import Config
from paceline.core.errors import PacelineError, RequestError
from paceline.core.events import CacheEvent
from paceline.core.plan import NO_ROWS, Admitted, Grown, Outputs, Plan, Rows, StepResult
from paceline.core.request import Item, Request
from paceline.sched.scheduler import Scheduler
from paceline.sched.stats import Stats

T = TypeVar("T")

MAGIC = b"\x89paceline\r\n"
FORMAT = 1  # rises when older code could not read what newer code writes
LIMIT_BYTES = 256 << 20

# A file is MAGIC, the format's number, and records:
#
#     +-----------+---------+--------------+-------------------+
#     | length u32 | kind u8 | checksum u32 | payload [length] |
#     +-----------+---------+--------------+-------------------+
#
# all little-endian; the checksum covers the three other parts. The first record holds the
# settings. A call is written before it is made, so that the one that never came back is
# there too; what came of it, if that must be known, is the record after it.
FORMAT_NUMBER = Struct("<H")
HEAD = Struct("<IB")
CHECKSUM = Struct("<I")
TIME = Struct("<d")
LENGTH = Struct("<I")
COMMITTED = Struct("<QdI")  # step, time, rows of its plan
STEP = Struct("<Q")
PART_BYTES = 8
TOKEN = np.dtype("<i4")
ONE = np.ones(1, TOKEN).tobytes()


class Kind(IntEnum):
    """What a record is. The numbers are part of the format."""

    SETTINGS = 1
    SUBMIT = 2
    ABORT = 3
    PARK = 4
    WAKE = 5
    PLAN = 6
    COMMIT = 7
    COMMIT_ONES = 8  # every row yielded one token
    FAIL = 9
    RETRY = 10
    PAUSE = 11
    RESUME = 12
    DRAIN = 13
    RESET_PREFIX_CACHE = 14
    PLANNED = 32  # digests of the plan that came of the PLAN before
    REFUSED = 33  # the call before raised this error
    ENDED = 64  # nothing follows, for this reason


class RecordingError(PacelineError, ValueError):
    """A recording that cannot be made or read."""


def plain(value: Any) -> Any:
    """What JSON does not know by itself."""
    if isinstance(value, Item):
        return [value.identity, value.offset, value.length]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be recorded")


to_json = JSONEncoder(separators=(",", ":"), default=plain).encode


def record(kind: Kind, payload: bytes) -> bytes:
    head = HEAD.pack(len(payload), kind)
    return b"".join((head, CHECKSUM.pack(crc32(payload, crc32(head))), payload))


def arguments(*values: Any) -> bytes:
    return to_json(values).encode()


def with_tail(values: Iterable[Any], tail: bytes) -> bytes:
    """Plain values and an array behind them."""
    head = to_json(list(values)).encode()
    return b"".join((LENGTH.pack(len(head)), head, tail))


def preamble(config: Config) -> bytes:
    """Everything before the first call."""
    try:
        made_by = version("paceline")
    except PackageNotFoundError:  # it runs from its source
        made_by = "unknown"
    settings = {"paceline": made_by, "settings": config.to_dict()}
    return MAGIC + FORMAT_NUMBER.pack(FORMAT) + record(Kind.SETTINGS, to_json(settings).encode())


# -- calls as payloads ------------------------------------------------------

ASKED = [(one.name, one.default) for one in fields(Request) if one.name != "prompt"]


def submission(request: Request, now: float, parked: str) -> bytes:
    """The fields of a request that are not at their default, and its prompt."""
    asked = {name: getattr(request, name) for name, default in ASKED}
    said = {name: asked[name] for name, default in ASKED if asked[name] != default}
    try:
        return with_tail((said, now, parked), request.prompt.astype(TOKEN, copy=False).tobytes())
    except TypeError as error:
        raise RequestError(f"request {request.id!r}: {error}") from None


def sampled_mask(count: Any, width: int) -> Any:
    """Which ids of a result were sampled."""
    return np.arange(width) < count[:, None]


def commitment(plan: Plan, result: StepResult, now: float) -> bytes:
    """The record of a commit: the ids that were sampled, and how many of them in each row."""
    ids, count = np.asarray(result.ids, TOKEN), np.asarray(result.count, TOKEN)
    fits = ids.ndim == 2 and count.shape == ids.shape[:1]  # noqa: PLR2004
    if fits and ids.shape[1] and count.tobytes() == ONE * len(ids):
        head = COMMITTED.pack(plan.step, now, len(plan.rows))
        return record(Kind.COMMIT_ONES, head + ids[:, 0].tobytes())
    small = count.astype(np.uint8)
    counts = small if (small == count).all() else count
    kept = ids[sampled_mask(count, ids.shape[1])] if fits else ids
    shape = (ids.shape, count.shape, counts.itemsize)
    head = (plan.step, now, len(plan.rows), *shape)
    return record(Kind.COMMIT, with_tail(head, counts.tobytes() + kept.tobytes()))


# -- plans as digests -------------------------------------------------------

PARTS = ("rows", "positions", "blocks", "changes")


def part(*pieces: bytes) -> bytes:
    return blake2b(b"".join(pieces), digest_size=PART_BYTES).digest()


def columns(*arrays: Any) -> bytes:
    """Arrays of one length as bytes that are the same on every machine."""
    wide = [np.asarray(array).astype("<i8", copy=False).tobytes() for array in arrays]
    return b"".join((LENGTH.pack(len(arrays[0])), *wide))


def rows_part(rows: Rows) -> bytes:
    numbers = (rows.slot, rows.epoch, rows.serial, rows.count, rows.drafts, rows.samples)
    names = "\0".join(rows.request_id.tolist())
    return part(columns(*numbers), names.encode(errors="surrogatepass"))


def blocks_part(grown: Grown, admitted: tuple[Admitted, ...]) -> bytes:
    given = [new.blocks for new in admitted]
    return part(columns(grown.slot, grown.index, grown.block), arguments(given))


def changes_part(plan: Plan) -> bytes:
    came = [
        (new.slot, new.request.id, len(new.tokens), new.computed, new.resumed)
        for new in plan.admitted
    ]
    tokens = [new.tokens.astype(TOKEN, copy=False).tobytes() for new in plan.admitted]
    return part(arguments(came, plan.released, plan.preempted, plan.finished), *tokens)


NO_BLOCKS = blocks_part(Plan(0, NO_ROWS, NO_ROWS.count).grown, ())
NO_CHANGES = changes_part(Plan(0, NO_ROWS, NO_ROWS.count))


class Fingerprint:
    """Digests of plans, one for each of PARTS. Rows that several plans share are read once."""

    def __init__(self) -> None:
        self._rows: Rows = NO_ROWS
        self._rows_part = rows_part(NO_ROWS)

    def of(self, plan: Plan) -> bytes:
        """Every field of a plan, in 32 bytes."""
        if plan.rows is not self._rows:
            self._rows, self._rows_part = plan.rows, rows_part(plan.rows)
        came, grew = plan.admitted, len(plan.grown.block)
        changed = came or plan.released or plan.preempted or plan.finished
        return b"".join(
            (
                self._rows_part,
                part(STEP.pack(plan.step), plan.start.astype(TOKEN, copy=False).tobytes()),
                blocks_part(plan.grown, came) if grew or came else NO_BLOCKS,
                changes_part(plan) if changed else NO_CHANGES,
            )
        )


# -- the recorder -----------------------------------------------------------


def opened(path: Path) -> FileIO:
    """A new file. An earlier recording there is kept beside it, as the last thing known."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as there:
            if there.read(len(MAGIC)) != MAGIC:
                raise RecordingError(f"{path} exists and is no recording; it is left alone")
        path.replace(path.with_name(f"{path.name}.old"))
    return path.open("wb", buffering=0)


ENDED_BYTES = len(record(Kind.ENDED, b"closed"))


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
        begin = preamble(scheduler.config)
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
            self._write(record(Kind.SUBMIT, submission(request, now, parked)))
        self._call(lambda: self.scheduler.submit(request, now, parked))

    def abort(self, request_id: str, now: float) -> bool:
        self._note(Kind.ABORT, request_id, now)
        return self._call(lambda: self.scheduler.abort(request_id, now))

    def park(self, request_id: str, reason: str, now: float) -> bool:
        self._note(Kind.PARK, request_id, reason, now)
        return self._call(lambda: self.scheduler.park(request_id, reason, now))

    def wake(self, request_id: str, now: float) -> bool:
        self._note(Kind.WAKE, request_id, now)
        return self._call(lambda: self.scheduler.wake(request_id, now))

    def plan(self, now: float) -> Plan:
        if self.ended:
            return self.scheduler.plan(now)
        self._write(record(Kind.PLAN, TIME.pack(now)))
        plan = self._call(lambda: self.scheduler.plan(now))
        digests = STEP.pack(plan.step) + self._fingerprint.of(plan)
        self._hold(record(Kind.PLANNED, digests))
        return plan

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs:
        if self.ended:
            return self.scheduler.commit(plan, result, now)
        self._write(commitment(plan, result, now))
        return self._call(lambda: self.scheduler.commit(plan, result, now))

    def fail(self, plan: Plan, now: float, message: str = "the step failed") -> Outputs:
        self._note(Kind.FAIL, plan.step, now, message)
        return self._call(lambda: self.scheduler.fail(plan, now, message))

    def retry(self, plan: Plan, now: float) -> None:
        self._note(Kind.RETRY, plan.step, now)
        self._call(lambda: self.scheduler.retry(plan, now))

    def pause(self, mode: Literal["new", "all"] = "new") -> None:
        self._note(Kind.PAUSE, mode)
        self._call(lambda: self.scheduler.pause(mode))

    def resume(self) -> None:
        self._note(Kind.RESUME)
        self._call(self.scheduler.resume)

    def drain(self) -> None:
        self._note(Kind.DRAIN)
        self._call(self.scheduler.drain)

    def reset_prefix_cache(self, preempt_running: bool = False, now: float = 0.0) -> bool:
        self._note(Kind.RESET_PREFIX_CACHE, preempt_running, now)
        return self._call(lambda: self.scheduler.reset_prefix_cache(preempt_running, now))

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
    def stats(self) -> Stats:
        return self.scheduler.stats

    @property
    def usage(self) -> float:
        return self.scheduler.usage

    def cache_events(self) -> list[CacheEvent]:
        return self.scheduler.cache_events()

    def explain(self, request_id: str) -> str:
        return self.scheduler.explain(request_id)

    def snapshot(self) -> dict[str, Any]:
        return self.scheduler.snapshot()

    def check(self) -> None:
        self.scheduler.check()

    # -- writing ------------------------------------------------------------

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except PacelineError as error:
            self._hold(record(Kind.REFUSED, str(error).encode(errors="replace")))
            raise

    def _note(self, kind: Kind, *values: Any) -> None:
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
        ending = record(Kind.ENDED, reason.encode())
        self._held.append(ending)
        self.size_bytes += len(ending)
        self._flush()
        if not self.ended:
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        self.ended = reason
        self._held.clear()
        self._file.close()
