"""The container format of llama.cpp: fields and tensors, without a look at their meaning."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
SCALARS |= {12: "d"}


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a type of tensor is stored: so many elements in a block of so many bytes."""

    name: str
    elements: int
    block_bytes: int


ENCODINGS = {
    0: Encoding("F32", 1, 4),
    1: Encoding("F16", 1, 2),
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    6: Encoding("Q5_0", 32, 22),
    7: Encoding("Q5_1", 32, 24),
    8: Encoding("Q8_0", 32, 34),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    30: Encoding("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    shape: tuple[int, ...]  # rows first
    encoding: Encoding
    blocks: npt.NDArray[np.uint8]  # [blocks, block_bytes]


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Fields are read, tensors are mapped.

    The `gguf` package makes several arrays of every word of the vocabulary and takes seconds
    for it, which is why the header is read here.
    """
    try:
        with path.open("rb") as file:
            # A private mapping is writable, as torch wants its memory, and never written to.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return _Header(content).file()
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise ConfigError(f"{path} cannot be read as GGUF: {error}") from None


class _Header:
    """A place in the file that moves on with everything read."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.place = 0

    def file(self) -> GGUFFile:
        if self.content[:4] != MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        self.place = 4
        version, tensors, fields = self.scalars("I", 1)[0], *self.scalars("Q", 2)
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}")
        named = {self.string(): self.value(self.scalar("I")) for _ in range(fields)}
        listed = [self.tensor() for _ in range(tensors)]
        alignment = named.get("general.alignment", 32)
        start = -(-self.place // alignment) * alignment
        return GGUFFile(named, {entry[0]: self.mapped(start, *entry) for entry in listed})

    def scalars(self, kind: str, count: int) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{count}{kind}", self.content, self.place)
        self.place += struct.calcsize(f"<{count}{kind}")
        return found

    def scalar(self, kind: str) -> Any:
        return self.scalars(kind, 1)[0]

    def string(self) -> str:
        length = self.scalar("Q")
        text = self.content[self.place : self.place + length]
        if len(text) < length:
            raise ValueError("it ends in the middle of a text")
        self.place += length
        return text.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.scalar("I"), self.scalar("Q")
            if kind in SCALARS:
                return list(self.scalars(SCALARS[kind], count))
            return [self.value(kind) for _ in range(count)]
        if kind not in SCALARS:
            raise ValueError(f"a field has the unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset; the file has the shortest stride first."""
        name, dimensions = self.string(), self.scalar("I")
        shape = self.scalars("Q", dimensions)[::-1]
        return name, shape, self.scalar("I"), self.scalar("Q")

    def mapped(
        self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> GGUFTensor:
        encoding = ENCODINGS.get(kind)
        if encoding is None:
            raise ValueError(f"tensor {name!r} has type {kind}, which is not supported")
        if not shape or shape[-1] % encoding.elements:
            raise ValueError(f"tensor {name!r} {list(shape)} is not made of whole blocks")
        count = int(np.prod(shape)) // encoding.elements
        size = count * encoding.block_bytes
        if start + offset + size > len(self.content):
            raise ValueError(f"it ends before tensor {name!r} does")
        found = np.frombuffer(self.content, np.uint8, size, start + offset)
        return GGUFTensor(shape, encoding, found.reshape(count, encoding.block_bytes))
