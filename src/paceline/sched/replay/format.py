"""The records of a recording: how calls, results and plans become bytes, and back."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from json import JSONEncoder, loads
from struct import Struct
from typing import Any, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt

from paceline.core.arrays import F32, I32, Bool
from paceline.core.config import Config
from paceline.core.errors import PacelineError, RequestError
from paceline.core.plan import (
    NO_ROWS,
    Admitted,
    Candidates,
    Failed,
    Grown,
    Plan,
    Rows,
    StepResult,
)
from paceline.core.request import Item, Request
from paceline.core.sampling import GREEDY, Sampling

MAGIC = b"\x89paceline\r\n"
FORMAT = 3  # rises when older code could not read what newer code writes
READABLE = (2, 3)  # the first of these has no failed rows, and no ends of single children

# A file is MAGIC, the number of the format, and records, all little-endian:
#
#     +------------+---------+--------------+------------------+
#     | length u32 | kind u8 | checksum u32 | payload [length] |
#     +------------+---------+--------------+------------------+
#
# The checksum covers the three other parts. The first record holds the settings. A call is
# written before it is made, so that one that never came back is there too; what came of it,
# where that matters, is the record after it.
FORMAT_NUMBER = Struct("<H")
HEAD = Struct("<IB")
CHECKSUM = Struct("<I")
TIME = Struct("<d")
LENGTH = Struct("<I")
COMMITTED = Struct("<QdI")  # step, time, rows of its plan
STEP = Struct("<Q")
PART_BYTES = 8
TOKEN = np.dtype("<i4")
SCORE = np.dtype("<f4")
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
    SCORES = 15  # log-probabilities and candidates of the COMMIT that follows
    MEASURE = 16
    FAILED = 17  # rows that failed, of the COMMIT that follows
    PLANNED = 32  # digests of the plan that came of the PLAN before
    REFUSED = 33  # the call before raised this error
    ENDED = 64  # nothing follows, for this reason


class RecordingError(PacelineError, ValueError):
    """A recording that cannot be made or read."""


def plain(value: Any) -> Any:
    """What JSON does not know by itself."""
    if isinstance(value, Item):
        return [value.identity, value.offset, value.length]
    if isinstance(value, Sampling):
        pairs = [(one.name, getattr(value, one.name)) for one in fields(Sampling)]
        return {name: said for name, said in pairs if said != getattr(GREEDY, name)}
    if isinstance(value, Mapping):
        return [*cast("Mapping[Any, Any]", value).items()]
    if hasattr(value, "item"):  # a scalar of numpy's
        return value.item()
    raise TypeError(f"{value!r} cannot be recorded")


to_json = JSONEncoder(separators=(",", ":"), default=plain).encode


def record(kind: Kind, payload: bytes) -> bytes:
    head = HEAD.pack(len(payload), kind)
    return b"".join((head, CHECKSUM.pack(checksum(head, payload)), payload))


def checksum(head: bytes, payload: bytes) -> int:
    return crc32(payload, crc32(head))


def column(array: npt.NDArray[Any], width: npt.DTypeLike = TOKEN) -> bytes:
    """The bytes of an array, the same on every machine."""
    return array.astype(width, copy=False).tobytes()


def arguments(*values: Any) -> bytes:
    return to_json(values).encode()


def with_tail(values: Iterable[Any], tail: bytes) -> bytes:
    """Plain values, and an array behind them."""
    head = to_json(list(values)).encode()
    return b"".join((LENGTH.pack(len(head)), head, tail))


def values_of(payload: bytes) -> list[Any]:
    """The plain values in front of a tail."""
    (length,) = LENGTH.unpack_from(payload)
    return loads(payload[LENGTH.size : LENGTH.size + length])


def tail_of(payload: bytes) -> bytes:
    (length,) = LENGTH.unpack_from(payload)
    return payload[LENGTH.size + length :]


# -- the settings -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preamble:
    """What was recorded, and by which paceline."""

    made_by: str
    config: Config

    @staticmethod
    def of(config: Config) -> "Preamble":
        try:
            return Preamble(version("paceline"), config)
        except PackageNotFoundError:  # it runs from its source
            return Preamble("unknown", config)

    def encoded(self) -> bytes:
        """Everything before the first call."""
        told = {"paceline": self.made_by, "settings": self.config.to_dict()}
        settings = record(Kind.SETTINGS, to_json(told).encode())
        return MAGIC + FORMAT_NUMBER.pack(FORMAT) + settings

    @staticmethod
    def decoded(payload: bytes) -> "Preamble":
        """From the payload of the first record. ValueError if this paceline cannot use it."""
        told = loads(payload)
        return Preamble(str(told["paceline"]), Config.of(**told["settings"]))


# -- calls as payloads ------------------------------------------------------

ASKED = [(one.name, one.default) for one in fields(Request) if one.name != "prompt"]


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `submit`."""

    request: Request
    now: float
    parked: str

    def encoded(self) -> bytes:
        """The fields that are not at their default, and the prompt."""
        request = self.request
        asked = {name: getattr(request, name) for name, _ in ASKED}
        prompt = column(request.prompt)
        try:
            said = {name: asked[name] for name, default in ASKED if asked[name] != default}
            return record(Kind.SUBMIT, with_tail((said, self.now, self.parked), prompt))
        except (TypeError, ValueError) as error:
            raise RequestError(f"request {request.id!r}: {error}") from None

    @staticmethod
    def decoded(payload: bytes) -> "Submission":
        said, now, parked = values_of(payload)
        said["items"] = tuple(Item(*item) for item in said.get("items", ()))
        said["sampling"] = sampling_of(said.get("sampling", {}))
        prompt = np.frombuffer(tail_of(payload), TOKEN)
        return Submission(Request(prompt=prompt, **said), now, parked)


def sampling_of(said: dict[str, Any]) -> Sampling:
    """From the settings that are not those of greedy sampling."""
    if not said:
        return GREEDY
    if "logit_bias" in said:
        said["logit_bias"] = {int(token): bias for token, bias in said["logit_bias"]}
    return replace(GREEDY, **said)


@dataclass(frozen=True, slots=True)
class Commitment:
    """The arguments of `commit`, with what names its plan."""

    step: int
    now: float
    rows: int  # of the plan
    result: StepResult

    def encoded(self) -> bytes:
        """The ids that were sampled, and how many in each row unless that is always one."""
        ids, count = np.asarray(self.result.ids, TOKEN), np.asarray(self.result.count, TOKEN)
        fits = well_formed(ids.shape, count.shape)
        if fits and ids.shape[1] and count.tobytes() == ONE * len(ids):
            head = COMMITTED.pack(self.step, self.now, self.rows)
            return record(Kind.COMMIT_ONES, head + ids[:, :1].tobytes())
        small = count.astype(np.uint8)
        counts = small if (small == count).all() else count
        kept = ids[sampled(count, ids.shape[1])] if fits else ids
        head = (self.step, self.now, self.rows, ids.shape, count.shape, counts.itemsize)
        return record(Kind.COMMIT, with_tail(head, counts.tobytes() + kept.tobytes()))

    @staticmethod
    def decoded_ones(payload: bytes) -> "Commitment":
        step, now, rows = COMMITTED.unpack_from(payload)
        ids = np.frombuffer(payload, TOKEN, offset=COMMITTED.size).reshape(-1, 1)
        return Commitment(step, now, rows, StepResult(ids, np.ones(len(ids), np.int32)))

    @staticmethod
    def decoded(payload: bytes) -> "Commitment":
        step, now, rows, ids_shape, count_shape, itemsize = values_of(payload)
        tail = tail_of(payload)
        entries = math.prod(count_shape)
        count = np.frombuffer(tail, np.uint8 if itemsize == 1 else TOKEN, entries)
        count = count.astype(np.int32).reshape(count_shape)
        kept = np.frombuffer(tail, TOKEN, offset=entries * itemsize)
        ids = np.full(ids_shape, -1, np.int32)
        if well_formed(ids_shape, count_shape):
            ids[sampled(count, ids_shape[1])] = kept
        else:
            ids[...] = kept.reshape(ids_shape)
        return Commitment(step, now, rows, StepResult(ids, count))


@dataclass(frozen=True, slots=True)
class Scores:
    """What a result says beside the tokens, for requests that want their best."""

    logprob: F32 | None
    candidates: Candidates | None

    @staticmethod
    def of(result: StepResult) -> "Scores | None":
        if result.logprob is None and result.candidates is None:
            return None
        return Scores(result.logprob, result.candidates)

    def encoded(self) -> bytes:
        logprob, found = self.logprob, self.candidates
        shapes = (
            None if logprob is None else logprob.shape,
            None if found is None else found.ids.shape,
        )
        tail = b"" if logprob is None else column(logprob, SCORE)
        if found is not None:
            tail += column(found.ids) + column(found.logprob, SCORE)
        return record(Kind.SCORES, with_tail(shapes, tail))

    @staticmethod
    def decoded(payload: bytes) -> "Scores":
        shape, found_shape = values_of(payload)
        values = np.frombuffer(tail_of(payload), SCORE)
        first = math.prod(shape) if shape is not None else 0
        logprob = values[:first].reshape(shape) if shape is not None else None
        if found_shape is None:
            return Scores(logprob, None)
        ids, scores = np.split(values[first:], 2)
        found = Candidates(ids.view(TOKEN).reshape(found_shape), scores.reshape(found_shape))
        return Scores(logprob, found)

    def added_to(self, result: StepResult) -> StepResult:
        return StepResult(result.ids, result.count, self.logprob, self.candidates)


def failed_rows(failed: tuple[Failed, ...]) -> bytes:
    """What a result says of rows that came to nothing."""
    return record(Kind.FAILED, arguments(*((one.row, one.reason) for one in failed)))


def failed_of(payload: bytes) -> tuple[Failed, ...]:
    return tuple(Failed(row, reason) for row, reason in loads(payload))


def well_formed(ids_shape: Sequence[int], count_shape: Sequence[int]) -> bool:
    """Does a result have a count for each row of ids? One that has not is refused."""
    return len(ids_shape) == len(("rows", "columns")) and list(count_shape) == [ids_shape[0]]


def sampled(count: I32, width: int) -> Bool:
    """Which of `width` ids in each row count."""
    return np.arange(width) < count[:, None]


# -- plans as digests -------------------------------------------------------

PARTS = ("rows", "positions", "blocks", "changes")


def part(*pieces: bytes) -> bytes:
    return blake2b(b"".join(pieces), digest_size=PART_BYTES).digest()


def rows_part(rows: Rows) -> bytes:
    names = "\0".join(rows.request_id.tolist()).encode(errors="surrogatepass")
    columns = (rows.slot, rows.epoch, rows.child, rows.count, rows.drafts, rows.samples)
    numbers = map(column, columns)
    return part(LENGTH.pack(len(rows)), *numbers, column(rows.serial, "<i8"), names)


def blocks_part(grown: Grown, admitted: tuple[Admitted, ...]) -> bytes:
    given = [new.blocks for new in admitted]
    numbers = map(column, (grown.slot, grown.index, grown.block))
    return part(LENGTH.pack(len(grown.block)), *numbers, arguments(given))


def changes_part(plan: Plan) -> bytes:
    came = [
        (new.slot, new.request.id, len(new.tokens), new.computed, new.resumed)
        for new in plan.admitted
    ]
    tokens = [column(new.tokens) for new in plan.admitted]
    left = plan.released, plan.preempted, plan.finished
    moved = plan.copies, plan.swap_out, plan.swap_in, plan.chosen, plan.kind
    return part(arguments(came, *left, *moved), *tokens)


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
        changed = came or plan.released or plan.preempted or plan.finished or plan.chosen
        moved = plan.copies or plan.swap_out or plan.swap_in or plan.kind != "mixed"
        return b"".join(
            (
                self._rows_part,
                part(STEP.pack(plan.step), column(plan.start)),
                blocks_part(plan.grown, came) if grew or came else NO_BLOCKS,
                changes_part(plan) if changed or moved else NO_CHANGES,
            )
        )
