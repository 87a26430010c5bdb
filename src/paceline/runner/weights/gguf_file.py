"""The container format of llama.cpp: fields and tensors, without a look at their meaning."""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from paceline.core.gguf import U32, U64, Cursor, errors_naming, read_header


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


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the list of tensors."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # bytes from where the first tensor begins


def read_gguf(path: Path) -> GGUFFile:
    """Fields are read, tensors are mapped."""
    with errors_naming(path):
        with path.open("rb") as file:
            # A private mapping is writable, as torch wants its memory, and never written to.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header = read_header(content)
        entries = [entry_at(header.cursor) for _ in range(header.tensors)]
        alignment = cast("int", header.fields.get("general.alignment", 32))
        start = -(-header.cursor.place // alignment) * alignment
        return GGUFFile(
            header.fields, {entry.name: mapped(content, start, entry) for entry in entries}
        )


def entry_at(cursor: Cursor) -> Entry:
    """The file has the shortest stride first."""
    name, dimensions = cursor.string(), int(cursor.number(U32))
    shape = tuple(int(size) for size in cursor.numbers(U64, dimensions))[::-1]
    return Entry(name, shape, int(cursor.number(U32)), int(cursor.number(U64)))


def mapped(content: mmap.mmap, start: int, entry: Entry) -> GGUFTensor:
    name, shape, encoding = entry.name, entry.shape, ENCODINGS.get(entry.kind)
    if encoding is None:
        raise ValueError(f"tensor {name!r} has type {entry.kind}, which is not supported")
    if not shape or shape[-1] % encoding.elements:
        raise ValueError(f"tensor {name!r} {list(shape)} is not made of whole blocks")
    count = int(np.prod(shape)) // encoding.elements
    size, first = count * encoding.block_bytes, start + entry.offset
    if first + size > len(content):
        raise ValueError(f"it ends before tensor {name!r} does")
    found = np.frombuffer(content, np.uint8, size, first)
    return GGUFTensor(shape, encoding, found.reshape(count, encoding.block_bytes))
