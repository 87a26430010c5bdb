"""The header of a GGUF file: every field with its value, and where the list of tensors begins."""

import mmap
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import cast

from paceline.core.errors import ConfigError

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
U32, STRING, ARRAY, U64 = 4, 8, 9, 10
FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}


class Cursor:
    """A place in the file that only moves forward, past what it has read.

        magic  version  tensors  pairs | key kind value | key kind value | ... | tensors

    An array is `kind count item item ...`, a string `length bytes`. Vocabularies are arrays of
    hundreds of thousands of strings, so an item costs one unpacking and one slice; the `gguf`
    package makes several arrays of each, and takes seconds for it.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.offset = len(MAGIC)

    def number(self, kind: int) -> int | float | bool:
        return self.numbers(kind, 1)[0]

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self) -> Value:
        kind = int(self.number(U32))
        if kind == ARRAY:
            inner, count = int(self.number(U32)), int(self.number(U64))
            if inner == STRING:
                return self._strings(count)
            return cast(list[int], list(self.numbers(inner, count)))
        return self.string() if kind == STRING else self.number(kind)

    def numbers(self, kind: int, count: int) -> tuple[int | float | bool, ...]:
        if kind not in FORMATS:
            raise ValueError(f"a value of kind {kind}")
        layout = f"<{count}{FORMATS[kind]}"
        at, self.offset = self.offset, self.offset + struct.calcsize(layout)
        if self.offset > len(self._content):
            raise self._cut()
        return struct.unpack_from(layout, self._content, at)

    def _strings(self, count: int) -> list[str]:
        content, at, length = self._content, self.offset, struct.Struct("<Q")
        size = len(content)
        found: list[str] = []
        for _ in range(count):
            begin = at + length.size
            at = begin + length.unpack_from(content, at)[0] if begin <= size else begin
            if at > size:
                raise self._cut()
            found.append(content[begin:at].decode())
        self.offset = at
        return found

    def _cut(self) -> ValueError:
        return ValueError(
            f"it is incomplete or damaged: it has {len(self._content):,} bytes and ends inside its "
            "header; download it again"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """What a file says of itself, and the cursor in front of its list of tensors."""

    fields: dict[str, Value]
    tensors: int
    cursor: Cursor


def map_file(file: BufferedReader, access: int) -> mmap.mmap:
    """The content of a file, which a mapping needs to have."""
    if not os.fstat(file.fileno()).st_size:
        raise ValueError("it is empty; download it again")
    return mmap.mmap(file.fileno(), 0, access=access)


def check_length(content: mmap.mmap, size: int) -> None:
    """ValueError if the file has less than the bytes that its header speaks of."""
    if len(content) < size:
        raise ValueError(
            f"it is incomplete (has {len(content):,} of {size:,} bytes): download it again"
        )


def read_header(content: mmap.mmap) -> Header:
    """ValueError, or struct.error, if this is no GGUF."""
    if content[: len(MAGIC)] != MAGIC[: len(content)]:
        raise ValueError(f"it begins with {content[: len(MAGIC)]!r}, not with the letters GGUF")
    cursor = Cursor(content)
    version = cursor.number(U32)
    if version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise ValueError(f"its version is {version}; known are {known}")
    tensors, pairs = int(cursor.number(U64)), int(cursor.number(U64))
    return Header({cursor.string(): cursor.value() for _ in range(pairs)}, tensors, cursor)


@contextmanager
def errors_naming(path: Path) -> Generator[None]:
    """Whatever goes wrong while a file is read is an error that names it."""
    try:
        yield
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise ConfigError(f"{path} cannot be read as GGUF: {error}") from None


def read_metadata(path: Path) -> dict[str, Value]:
    """Every field of the file with its value, and nothing behind it."""
    with (
        errors_naming(path),
        path.open("rb") as file,
        map_file(file, mmap.ACCESS_READ) as view,
    ):
        return read_header(view).fields
