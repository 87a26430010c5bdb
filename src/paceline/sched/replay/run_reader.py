"""Read the files of one run as if they were one."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from paceline.sched.replay.preamble import Preamble
from paceline.sched.replay.reader import Reader, Record, RecordingEnd
from paceline.sched.replay.recording_files import numbered
from paceline.sched.replay.records import RecordingError, RecordKind, continued_by


class RunReader:
    """Yields the records of several files, each of which continues the one before it.

    It stops at the first file that is not read to its end; `ending` says why.
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
        self._next: Record | None = None  # it was looked at, and not taken

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        found, self._next = self._next, None
        return next(self._records) if found is None else found

    def answer(self, kind: RecordKind) -> bytes | None:
        """Take the next record if it is of this kind, and return its payload."""
        found = next(self, None)
        if found is None or found.kind is kind:
            return None if found is None else found.payload
        self._next = found
        return None


# -- files that belong together ---------------------------------------------


def files_of_run(path: Path) -> list[Path]:
    """This file and the older ones that it continues, oldest first.

    Files that lie beside it and belong to another run are left out, and so are files from
    before a gap.
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

    Such a file is left behind if a new one was begun and its first write failed.
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
