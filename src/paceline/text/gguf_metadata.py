"""Reads the key-value part of a GGUF file, and nothing behind it."""

import mmap
import struct
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
    hundreds of thousands of strings, so an item costs one unpacking and one slice.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = len(MAGIC)

    def number(self, kind: int) -> int | float | bool:
        return self._numbers(kind, 1)[0]

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self) -> Value:
        kind = int(self.number(U32))
        if kind == ARRAY:
            inner, count = int(self.number(U32)), int(self.number(U64))
            if inner == STRING:
                return self._strings(count)
            return cast(list[int], list(self._numbers(inner, count)))
        return self.string() if kind == STRING else self.number(kind)

    def _numbers(self, kind: int, count: int) -> tuple[int | float | bool, ...]:
        if kind not in FORMATS:
            raise ValueError(f"a value of kind {kind}")
        layout = f"<{count}{FORMATS[kind]}"
        at, self._at = self._at, self._at + struct.calcsize(layout)
        return struct.unpack_from(layout, self._content, at)

    def _strings(self, count: int) -> list[str]:
        content, at, length = self._content, self._at, struct.Struct("<Q")
        found: list[str] = []
        for _ in range(count):
            begin = at + length.size
            at = begin + length.unpack_from(content, at)[0]
            found.append(content[begin:at].decode())
        if at > len(content):
            raise ValueError("a string behind the end")
        self._at = at
        return found


def read_metadata(path: Path) -> dict[str, Value]:
    """Every key of the file with its value."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return parse(view)
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise ConfigError(f"{path} cannot be read as GGUF: {error}") from None


def parse(content: mmap.mmap) -> dict[str, Value]:
    if content[: len(MAGIC)] != MAGIC:
        raise ValueError(f"it begins with {content[: len(MAGIC)]!r}")
    cursor = Cursor(content)
    version = cursor.number(U32)
    if version not in VERSIONS:
        raise ValueError(f"version {version}; known are {', '.join(map(str, VERSIONS))}")
    _tensors, pairs = cursor.number(U64), int(cursor.number(U64))
    return {cursor.string(): cursor.value() for _ in range(pairs)}
