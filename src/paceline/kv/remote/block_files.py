"""Blocks in files, one per key, in a folder of bounded size. A file is complete or absent."""

import os
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar
from uuid import uuid4

from paceline.kv.connector import Bytes
from paceline.kv.keys import HEAD, head_of

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

KNOWN = 1 << 17  # keys that are remembered
FRESH_S = 1.0  # for how long missing content is believed to be missing
USED_S = 60.0  # how often the use of content is noted in the store


class KnownContent:
    """Keys of content that was seen, that was not there, and that is being looked for.

    Content that was seen may be gone. Times are in seconds.
    """

    def __init__(self) -> None:
        self._there: OrderedDict[bytes, float] = OrderedDict()  # when its use was last noted
        self._missing: OrderedDict[bytes, float] = OrderedDict()  # when it was looked for
        self._sought: set[bytes] = set()

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys are there."""
        return next((at for at, key in enumerate(keys) if key not in self._there), len(keys))

    def is_missing(self, key: bytes, now: float) -> bool:
        return key in self._missing and now - self._missing[key] < FRESH_S

    def seek(self, key: bytes) -> bool:
        """Content is to be looked for. False if that is being done."""
        is_new = key not in self._sought
        self._sought.add(key)
        return is_new

    def found(self, keys: Sequence[bytes], number: int, now: float) -> None:
        """The first `number` of the keys that were sought from the first one on are there."""
        self._sought.discard(keys[0])
        self.add(keys[:number], -USED_S)
        if number < len(keys):
            remember(self._missing, keys[number], now)

    def use(self, keys: Sequence[bytes], now: float) -> tuple[bytes, ...]:
        """Content is in use. Returns the keys whose use was not noted for some time."""
        unnoted = tuple(key for key in keys if now - self._there[key] >= USED_S)
        for key in keys:
            self._there.move_to_end(key)
        self._there |= dict.fromkeys(unnoted, now)
        return unnoted

    def add(self, keys: Sequence[bytes], now: float) -> None:
        for key in keys:
            remember(self._there, key, now)
            self._missing.pop(key, None)

    def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._there.pop(key, None)

    def clear(self) -> list[bytes]:
        """Forget all. Returns the keys of content that was seen."""
        known = list(self._there)
        self._there.clear()
        self._sought.clear()
        return known


def remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value, and drop the oldest one if there are too many."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > KNOWN:
        known.popitem(last=False)


SUFFIX = ".kv"
LEFT_OVER_S = 3600.0  # a temporary file of this age has no writer any more
SHRUNK = 0.9  # of the limit: what is left after a cleanup
ReadEnd = Literal["whole", "missing", "damaged"]


class BlockFile(NamedTuple):
    """A file that was seen."""

    used: float  # time of the latest use
    size: int
    path: Path


class BlockFiles:
    """A folder per layout, which processes may share.

        path/<layout>/3f/3f09c1….kv      head, content
        path/<layout>/3f/tmp….part       a file that is being written

    A file is written under another name and renamed, so it is whole or not there, as long as the
    machine runs. After a crash of the machine it may be torn, and a copy may have the name of
    another one: the head shows both. The time of the latest use is the time of modification.
    Content that is used least recently is removed, in all layouts, when all files together have
    more than `limit_bytes`. Every process counts what it writes itself, and looks at the folder
    when that may be too much.
    """

    def __init__(self, path: Path, layout: str, limit_bytes: int) -> None:
        """OSError if the folder cannot be made."""
        self._top, self._own, self._limit = path, path / layout, limit_bytes
        self._layout = layout
        self._own.mkdir(parents=True, exist_ok=True)
        self.removed: deque[bytes] = deque()  # keys of this layout, to make room for others
        self._size = sum(one.size for one in self._all())

    def has(self, key: bytes) -> bool:
        """Whether there is a readable file."""
        return os.path.exists(self._file(key))  # Path.exists raises most errors

    def use(self, key: bytes) -> bool:
        """Note that content is in use. False if there is no file of it."""
        try:
            os.utime(self._file(key))
        except FileNotFoundError:
            return False
        except OSError:  # the file of another user
            pass
        return True

    def read(self, key: bytes, row: Bytes) -> ReadEnd:
        """Read a content into a row of its size. One that is damaged, or that is not what was
        written under this key, is removed."""
        file = self._file(key)
        try:
            with file.open("rb", buffering=0) as opened:
                head = opened.read(HEAD.size)
                read = opened.readinto(row.data)
        except OSError:
            return "missing"
        if read == len(row) and head == head_of(self._layout, key, row.data):
            self.use(key)
            return "whole"
        self.remove(key)
        return "damaged"

    def write(self, key: bytes, row: Bytes) -> None:
        """Write content unless it has a file. OSError if that fails."""
        file = self._file(key)
        if file.exists():
            self.use(key)
            return
        file.parent.mkdir(exist_ok=True)
        part = file.parent / f"tmp{uuid4().hex}.part"
        try:
            with part.open("xb", buffering=0) as opened:  # readable as the umask says
                opened.write(head_of(self._layout, key, row.data))
                if opened.write(row.data) != len(row):
                    raise OSError(f"{part}: the disk is full")
            os.replace(part, file)
        except OSError:
            with suppress(OSError):
                os.unlink(part)
            raise
        self._size += HEAD.size + len(row)
        if self._size > self._limit:
            self._shrink()

    def remove(self, key: bytes) -> None:
        with suppress(OSError):
            self._file(key).unlink()

    def clear(self) -> None:
        """Remove all content of the layout, for all processes. OSError if some is left."""
        problem: OSError | None = None
        for file in self._own.glob(f"*/*{SUFFIX}"):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                problem = error
        if problem is not None:
            raise problem

    def _file(self, key: bytes) -> Path:
        name = key.hex()
        return self._own / name[:2] / f"{name}{SUFFIX}"

    def _all(self) -> Iterator["BlockFile"]:
        for path in self._top.glob(f"*/*/*{SUFFIX}"):
            with suppress(OSError):  # another process may remove it
                status = path.stat()
                yield BlockFile(status.st_mtime, status.st_size, path)

    def _shrink(self) -> None:
        """Remove the content that was used least recently, and what writers left behind."""
        found = sorted(self._all())
        self._size = sum(one.size for one in found)
        newest = found[-1].used if found else 0.0
        for one in found:
            if self._size <= SHRUNK * self._limit:
                break
            with suppress(OSError):
                one.path.unlink()
                self._size -= one.size
                if one.path.is_relative_to(self._own):
                    self.removed.append(bytes.fromhex(one.path.stem))
        for part in self._top.glob("*/*/*.part"):
            with suppress(OSError):
                if part.stat().st_mtime < newest - LEFT_OVER_S:
                    part.unlink()
