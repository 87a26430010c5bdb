"""Read the records of a recording, up to the first incomplete one."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from io import BufferedReader
from itertools import count
from json import loads
from os import PathLike
from pathlib import Path

from paceline.core.settings.config import Config
from paceline.sched.replay.recording import numbered
from paceline.sched.replay.records import (
    CHECKSUM,
    CONTINUED,
    FORMAT,
    FORMAT_NUMBER,
    HEAD,
    MAGIC,
    READABLE,
    RecordingError,
    RecordKind,
    checksum,
    continued_by,
    record,
    to_json,
)


@dataclass(frozen=True, slots=True)
class Preamble:
    """The settings of the recorded scheduler, and the version of paceline that wrote them."""

    made_by: str
    config: Config

    @staticmethod
    def of(config: Config) -> "Preamble":
        try:
            return Preamble(version("paceline"), config)
        except PackageNotFoundError:  # not installed
            return Preamble("unknown", config)

    def encoded(self) -> bytes:
        """The content of a file before its first call."""
        content = {"paceline": self.made_by, "settings": self.config.to_dict()}
        settings = record(RecordKind.SETTINGS, to_json(content).encode())
        return MAGIC + FORMAT_NUMBER.pack(FORMAT) + settings

    @staticmethod
    def decoded(payload: bytes) -> "Preamble":
        """Decode the payload of the first record. ValueError if this version cannot use it."""
        content = loads(payload)
        return Preamble(str(content["paceline"]), Config.of(**content["settings"]))


KINDS = {kind.value: kind for kind in RecordKind}
SEARCHED = 1 << 20  # bytes searched for further records after one that exceeds the file


class RecordingEnd(Enum):
    """Why the readable part of a recording ends."""

    UNREAD = "it was not read to its end"
    CLOSED = "it is complete"
    CONTINUED = "it was full, and the recording goes on in a newer file"
    FULL = "it was full, and the run went on unrecorded"
    OPEN = "it has no end: its writer was killed, or still writes"
    CUT = "it ends inside a record: its writer was killed, or the file was cut or damaged"
    DAMAGED = "a record is damaged, and what follows it cannot be read"


def end_of(payload: bytes) -> RecordingEnd:
    """The end stated by the last record of a file."""
    if payload.startswith(CONTINUED):
        return RecordingEnd.CONTINUED
    return RecordingEnd.FULL if payload == b"full" else RecordingEnd.CLOSED


class CutBeginning(RecordingError):
    """The file ends before its first call: the writer was killed, or the disk was full."""


@dataclass(frozen=True, slots=True)
class Record:
    """One call, or the outcome of the call before it."""

    kind: RecordKind
    payload: bytes


def next_record(file: BufferedReader, left: int) -> Record | RecordingEnd:
    """Read the next record, if the `left` bytes hold a complete one."""
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
    """Why a record exceeds the file: it was cut, unless other records follow."""
    follows = any(holds_record(rest, offset) for offset in range(1, len(rest)))
    return RecordingEnd.DAMAGED if follows else RecordingEnd.CUT


def holds_record(content: bytes, offset: int) -> bool:
    """Is there a complete record with a valid checksum at `offset`?"""
    begin = offset + HEAD.size + CHECKSUM.size
    if begin > len(content):
        return False
    length, kind = HEAD.unpack_from(content, offset)
    if kind not in KINDS or begin + length > len(content):
        return False
    head, payload = content[offset : offset + HEAD.size], content[begin : begin + length]
    return CHECKSUM.unpack_from(content, offset + HEAD.size) == (checksum(head, payload),)


class Reader:
    """Yields the calls and outcomes of a file in order; `ending` says why it stopped.

    `read_bytes` of `size_bytes` were read and are valid. `state` is the state of the scheduler
    before the first call; None if the file begins with a new scheduler.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.ending = RecordingEnd.UNREAD
        self.size_bytes = self.read_bytes = 0
        with self.path.open("rb") as file:
            self.preamble = self._preamble(file)
            self.read_bytes = file.tell()
            self.state = self._state(file)
        self.beginning_bytes = self.read_bytes  # before the first call

    def _preamble(self, file: BufferedReader) -> Preamble:
        """Read the settings. RecordingError if they are invalid."""
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
        """Read the state of the scheduler, if it is the next record."""
        head = file.peek(HEAD.size)[: HEAD.size]
        if len(head) < HEAD.size or HEAD.unpack(head)[1] != RecordKind.STATE:
            return None
        found = self._beginning(file, "checkpoint")
        self.read_bytes = file.tell()
        return found.payload

    def _beginning(self, file: BufferedReader, what: str) -> Record:
        """Read a record before the first call."""
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


class RunReader:
    """Yields the records of several files, each of which continues the previous one.

    It stops at the first file that cannot be read to its end; `ending` says why.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """OSError or RecordingError if a file cannot be read."""
        self.files = [Reader(path) for path in paths]
        self._place = 0

    @property
    def path(self) -> Path:
        """The newest file, which gives the run its name."""
        return self.files[-1].path

    @property
    def preamble(self) -> Preamble:
        return self.files[0].preamble

    @property
    def state(self) -> bytes | None:
        """The state of the scheduler before the first call; None if it is a new one."""
        return self.files[0].state

    @property
    def current(self) -> Reader:
        """The file that is being read, or the one that reading stopped at."""
        return self.files[self._place]

    @property
    def ending(self) -> RecordingEnd:
        return self.current.ending

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield from self.current
            is_last = self._place == len(self.files) - 1
            if is_last or self.ending is not RecordingEnd.CONTINUED:
                return
            self._place += 1


class RecordQueue:
    """The records of a run in order. A call that is repeated takes the answers that follow it."""

    def __init__(self, reader: RunReader) -> None:
        self._records = iter(reader)
        self._next: Record | None = None  # read ahead, not taken

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        found, self._next = self._next, None
        return next(self._records) if found is None else found

    def answer(self, kind: RecordKind) -> bytes | None:
        """Take the next record if it is of this kind; returns its payload."""
        found = next(self, None)
        if found is None or found.kind is kind:
            return None if found is None else found.payload
        self._next = found
        return None


# -- files that belong together ---------------------------------------------


def files_of_run(path: Path) -> list[Path]:
    """This file and the older ones that it continues, oldest first.

    Files of other runs in the folder are left out, and so are files before a gap.
    """
    found = [path]
    base, first = unnumbered(path)
    for number in count(first + 1):
        older = numbered(base, number)
        if not continues(found[0], older):
            return found
        found.insert(0, older)
    raise AssertionError


def older_files_of_run(path: Path) -> list[Path]:
    """The files before one whose beginning cannot be read, oldest first.

    Such a file remains if the first write to it failed.
    """
    base, number = unnumbered(path)
    older = numbered(base, number + 1)
    return files_of_run(older) if older.is_file() else []


def unnumbered(path: Path) -> tuple[Path, int]:
    """`run` and 2 for `run.2`, if `run.2` is an older file of `run`; otherwise the path and 0."""
    number = path.suffix.removeprefix(".")
    if number.isdecimal() and number == str(int(number)) and int(number):
        return path.with_suffix(""), int(number)
    return path, 0


def continues(newer: Path, older: Path) -> bool:
    """Does the last record of the older file name the beginning of the newer one?"""
    try:
        size = Reader(newer).beginning_bytes
        with newer.open("rb") as file:
            last = continued_by(file.read(size))
        with older.open("rb") as file:
            file.seek(-len(last), 2)
            return file.read() == last
    except (OSError, RecordingError):
        return False
