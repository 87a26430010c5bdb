"""Reads the container format of llama.cpp: fields and tensors."""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from paceline.core.gguf import U32, U64, Cursor, errors_naming, read_header


@dataclass(frozen=True, slots=True)
class TensorEncoding:
    """How a type of tensor is stored: elements and bytes of a block."""

    name: str
    elements: int
    block_bytes: int


ENCODINGS = {
    0: TensorEncoding("F32", 1, 4),
    1: TensorEncoding("F16", 1, 2),
    2: TensorEncoding("Q4_0", 32, 18),
    3: TensorEncoding("Q4_1", 32, 20),
    6: TensorEncoding("Q5_0", 32, 22),
    7: TensorEncoding("Q5_1", 32, 24),
    8: TensorEncoding("Q8_0", 32, 34),
    12: TensorEncoding("Q4_K", 256, 144),
    13: TensorEncoding("Q5_K", 256, 176),
    14: TensorEncoding("Q6_K", 256, 210),
    30: TensorEncoding("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    shape: tuple[int, ...]  # rows first
    encoding: TensorEncoding
    blocks: npt.NDArray[np.uint8]  # [blocks, block_bytes]

    def part(self, index: int) -> "GGUFTensor":
        """One of the tensors that this one holds, which begin at whole blocks."""
        size = len(self.blocks) // self.shape[0]
        blocks = self.blocks[index * size : (index + 1) * size]
        return GGUFTensor(self.shape[1:], self.encoding, blocks)


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """An entry of the list of tensors."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # bytes after the start of the first tensor


def read_gguf(path: Path) -> GGUFFile:
    """Read the fields and map the tensors."""
    with errors_naming(path):
        with path.open("rb") as file:
            # torch needs writable memory, which a private mapping is; it is never written to.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header = read_header(content)
        entries = [entry_at(header.cursor) for _ in range(header.tensors)]
        alignment = cast("int", header.fields.get("general.alignment", 32))
        start = -(-header.cursor.place // alignment) * alignment
        return GGUFFile(
            header.fields, {entry.name: mapped(content, start, entry) for entry in entries}
        )


def entry_at(cursor: Cursor) -> TensorEntry:
    """Read an entry. The file lists the innermost dimension first."""
    name, dimensions = cursor.string(), int(cursor.number(U32))
    shape = tuple(int(size) for size in cursor.numbers(U64, dimensions))[::-1]
    return TensorEntry(name, shape, int(cursor.number(U32)), int(cursor.number(U64)))


def mapped(content: mmap.mmap, start: int, entry: TensorEntry) -> GGUFTensor:
    name, shape, encoding = entry.name, entry.shape, ENCODINGS.get(entry.kind)
    if encoding is None:
        raise ValueError(f"tensor {name!r} has type {entry.kind}, which is not supported")
    if not shape or shape[-1] % encoding.elements:
        raise ValueError(
            f"the rows of tensor {name!r} {list(shape)} do not fill whole blocks of {encoding.name}"
        )
    count = int(np.prod(shape)) // encoding.elements
    size, first = count * encoding.block_bytes, start + entry.offset
    if first + size > len(content):
        raise ValueError(f"the file ends inside tensor {name!r}")
    found = np.frombuffer(content, np.uint8, size, first)
    return GGUFTensor(shape, encoding, found.reshape(count, encoding.block_bytes))
