"""Read the records of a recording, up to the first that is not whole."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from io import BufferedReader
from os import PathLike
from pathlib import Path

from paceline.sched.replay.preamble import Preamble
from paceline.sched.replay.records import (
    CHECKSUM,
    CONTINUED,
    FORMAT_NUMBER,
    HEAD,
    MAGIC,
    READABLE,
    RecordingError,
    RecordKind,
    checksum,
)

KINDS = {kind.value: kind for kind in RecordKind}
SEARCHED = 1 << 20  # bytes after a record with too large a length, searched for further records


class RecordingEnd(Enum):
    """How the readable part of a recording ends."""

    UNREAD = "it was not read to its end"
    CLOSED = "it is complete"
    CONTINUED = "it was full, and the recording goes on in a newer file"
    FULL = "it was full, and the run went on unrecorded"
    OPEN = "it has no end: its writer was killed, or still writes"
    CUT = "it ends inside a record: its writer was killed, or the file was cut or damaged"
    DAMAGED = "a record is damaged, and what follows it cannot be read"


def end_of(payload: bytes) -> RecordingEnd:
    """The end that the last record of a file names."""
    if payload.startswith(CONTINUED):
        return RecordingEnd.CONTINUED
    return RecordingEnd.FULL if payload == b"full" else RecordingEnd.CLOSED


class CutBeginning(RecordingError):
    """A file ends before its first call: its writer was killed, or the disk was full."""


@dataclass(frozen=True, slots=True)
class Record:
    """One call, or the outcome of the call before it."""

    kind: RecordKind
    payload: bytes


def next_record(file: BufferedReader, left: int) -> Record | RecordingEnd:
    """The record at the file's position, if the `left` bytes hold a whole one."""
    head = file.read(HEAD.size + CHECKSUM.size)
    if not head:
        return RecordingEnd.OPEN
    if len(head) < HEAD.size + CHECKSUM.size:
        return RecordingEnd.CUT
    length, kind = HEAD.unpack_from(head)
    if len(head) + length > left:
        return torn(head + file.read(max(min(left, SEARCHED) - len(head), 0)))
    payload = file.read(length)
    if CHECKSUM.unpack_from(head, HEAD.size) != (checksum(head[: HEAD.size], payload),):
        return RecordingEnd.DAMAGED
    return Record(KINDS[kind], payload) if kind in KINDS else RecordingEnd.DAMAGED


def torn(rest: bytes) -> RecordingEnd:
    """Why a record is longer than the rest of the file: nothing follows one that was cut."""
    follows = any(holds_record(rest, place) for place in range(1, len(rest)))
    return RecordingEnd.DAMAGED if follows else RecordingEnd.CUT


def holds_record(content: bytes, place: int) -> bool:
    """Is there a whole and sound record?"""
    begin = place + HEAD.size + CHECKSUM.size
    if begin > len(content):
        return False
    length, kind = HEAD.unpack_from(content, place)
    if kind not in KINDS or begin + length > len(content):
        return False
    head, payload = content[place : place + HEAD.size], content[begin : begin + length]
    return CHECKSUM.unpack_from(content, place + HEAD.size) == (checksum(head, payload),)


class Reader:
    """Yields the calls and outcomes in a file in order; then `ending` says why no more follow.

    `read_bytes` of `size_bytes` were read and found sound. `state` is the state of the scheduler
    before the first call; None if the file begins with a fresh one.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.ending = RecordingEnd.UNREAD
        self.size_bytes = self.read_bytes = 0
        with self.path.open("rb") as file:
            self.preamble = self._preamble(file)
            self.read_bytes = file.tell()
            self.state = self._state(file)
        self.beginning_bytes = self.read_bytes  # all that precedes the first call

    def _preamble(self, file: BufferedReader) -> Preamble:
        """The settings. RecordingError if they cannot be read."""
        magic = file.read(len(MAGIC))
        if not magic:
            raise CutBeginning(f"{self.path} is empty")
        if not MAGIC.startswith(magic):
            raise RecordingError(f"{self.path} is not a recording of a scheduler")
        number = file.read(FORMAT_NUMBER.size)
        if len(number) == FORMAT_NUMBER.size and FORMAT_NUMBER.unpack(number)[0] not in READABLE:
            raise RecordingError(
                f"{self.path} has format {FORMAT_NUMBER.unpack(number)[0]}; "
                f"this paceline reads formats {READABLE[0]} to {READABLE[-1]}"
            )
        self.size_bytes = os.fstat(file.fileno()).st_size
        first = self._beginning(file, "settings")
        if first.kind is not RecordKind.SETTINGS:
            raise RecordingError(f"{self.path} is damaged: it does not begin with settings")
        try:
            return Preamble.decoded(first.payload)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{self.path}: its settings do not fit here: {error}") from None

    def _state(self, file: BufferedReader) -> bytes | None:
        """The state of the scheduler, if it is the next record."""
        head = file.peek(HEAD.size)[: HEAD.size]
        if len(head) < HEAD.size or HEAD.unpack(head)[1] != RecordKind.STATE:
            return None
        found = self._beginning(file, "checkpoint")
        self.read_bytes = file.tell()
        return found.payload

    def _beginning(self, file: BufferedReader, what: str) -> Record:
        """A record that precedes the first call."""
        found = next_record(file, self.size_bytes - file.tell())
        if found is RecordingEnd.DAMAGED:
            raise RecordingError(f"{self.path} is damaged: its {what} cannot be read")
        if isinstance(found, RecordingEnd):
            raise CutBeginning(f"{self.path} ends inside its {what}: nothing in it can be replayed")
        return found

    def __iter__(self) -> Iterator[Record]:
        with self.path.open("rb") as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            file.seek(self.read_bytes)
            while True:
                found = next_record(file, self.size_bytes - self.read_bytes)
                if isinstance(found, RecordingEnd):
                    self.ending = found
                    return
                self.read_bytes = file.tell()
                if found.kind is RecordKind.ENDED:
                    self.ending = end_of(found.payload)
                    return
                yield found
