"""The file format of recordings: records with a checksum, and the values inside them."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import IntEnum
from json import JSONEncoder, loads
from struct import Struct
from typing import Any, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt

from paceline.core.constraint import Constraint
from paceline.core.errors import PacelineError
from paceline.core.multimodal import ImageInput
from paceline.core.sampling import GREEDY, Sampling

MAGIC = b"\x89paceline\r\n"
FORMAT = 10  # rises when older code cannot read what newer code writes
# 2: no failed rows, no ends of single children; 3: no state; 4: no step times, no computed drafts;
# 5: no least step times; 6: no connector; 7: no costs of positions, no bodies; 8: images as `items`
# 9: no other weights
READABLE = (2, 3, 4, 5, 6, 7, 8, 9, 10)

# A file is MAGIC, the number of the format, and records, all little-endian:
#
#     +------------+---------+--------------+------------------+
#     | length u32 | kind u8 | checksum u32 | payload [length] |
#     +------------+---------+--------------+------------------+
#
# The checksum covers the three other parts. The first record holds the settings. In a file
# that continues another, the second one holds the state of the scheduler. A call is
# written before it is made, so that a call that never returned is in the file too. The record
# after it holds its outcome, where that matters.
FORMAT_NUMBER = Struct("<H")
HEAD = Struct("<IB")
CHECKSUM = Struct("<I")
TIME = Struct("<d")
LENGTH = Struct("<I")
STEP = Struct("<Q")
TOKEN = np.dtype("<i4")


class RecordKind(IntEnum):
    """What a record holds. The numbers are part of the format."""

    SETTINGS = 1
    SUBMIT = 2
    ABORT = 3
    PARK = 4
    WAKE = 5
    PLAN = 6
    COMMIT = 7
    COMMIT_ONES = 8  # a COMMIT in which every row yielded one token
    FAIL = 9
    RETRY = 10
    PAUSE = 11
    RESUME = 12
    DRAIN = 13
    RESET_PREFIX_CACHE = 14
    SCORES = 15  # log-probabilities and candidates of the COMMIT that follows
    MEASURE = 16
    FAILED = 17  # rows that failed, of the COMMIT that follows
    STATE = 18  # of the scheduler, where a file continues another
    DRAFTS = 19  # drafts that were computed, where not all were, of the COMMIT that follows
    STEP_TIMES = 20
    STOP = 21
    CONNECT = 22
    FORCED = 23  # tokens that were not sampled, of the COMMIT that follows
    STEP_COST = 24
    USE_WEIGHTS = 25
    PLANNED = 32  # digests of the plan that the PLAN before it returned
    REFUSED = 33  # the call before it raised this error
    OFFERED = 34  # answers of the connector to the call before it
    KEPT = 35
    TRANSFERRED = 36
    HANDED_OVER = 37
    ENDED = 64  # nothing follows, for this reason


class RecordingError(PacelineError, ValueError):
    """A recording cannot be written or read."""


CONTINUED = b"continued"


def continued_by(beginning: bytes) -> bytes:
    """The last record of a file that is continued by a file with this beginning."""
    return record(RecordKind.ENDED, CONTINUED + CHECKSUM.pack(crc32(beginning)))


def record(kind: RecordKind, payload: bytes) -> bytes:
    head = HEAD.pack(len(payload), kind)
    return b"".join((head, CHECKSUM.pack(checksum(head, payload)), payload))


def checksum(head: bytes, payload: bytes) -> int:
    return crc32(payload, crc32(head))


# -- values inside a payload ------------------------------------------------


def plain(value: Any) -> Any:
    """Convert a value to types that JSON has."""
    if isinstance(value, ImageInput):
        return [value.identity, value.offset, value.length]
    if isinstance(value, Constraint):
        return [getattr(value, one.name) for one in fields(Constraint)]
    if isinstance(value, Sampling):
        pairs = [(one.name, getattr(value, one.name)) for one in fields(Sampling)]
        return {name: given for name, given in pairs if given != getattr(GREEDY, name)}
    if isinstance(value, Mapping):
        return [*cast("Mapping[Any, Any]", value).items()]
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    raise TypeError(f"{value!r} cannot be recorded")


to_json = JSONEncoder(separators=(",", ":"), default=plain).encode


def arguments(*values: Any) -> bytes:
    return to_json(values).encode()


def column(array: npt.NDArray[Any], width: npt.DTypeLike = TOKEN) -> bytes:
    """The bytes of an array, the same on every machine."""
    return array.astype(width, copy=False).tobytes()


def with_tail(values: Iterable[Any], tail: bytes) -> bytes:
    """JSON values, followed by the bytes of an array."""
    head = to_json(list(values)).encode()
    return b"".join((LENGTH.pack(len(head)), head, tail))


def values_of(payload: bytes) -> list[Any]:
    """The JSON values in front of a tail."""
    (length,) = LENGTH.unpack_from(payload)
    return loads(payload[LENGTH.size : LENGTH.size + length])


def tail_of(payload: bytes) -> bytes:
    (length,) = LENGTH.unpack_from(payload)
    return payload[LENGTH.size + length :]
