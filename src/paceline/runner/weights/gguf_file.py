"""Read the fields and tensors of a GGUF file."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from paceline.core.system.gguf import (
    U32,
    U64,
    Cursor,
    check_length,
    errors_naming,
    map_file,
    read_header,
)
from paceline.runner.models.tensor_spec import Run


@dataclass(frozen=True, slots=True)
class TensorEncoding:
    """The storage of a tensor type: elements and bytes of a block."""

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
    10: TensorEncoding("Q2_K", 256, 84),
    11: TensorEncoding("Q3_K", 256, 110),
    12: TensorEncoding("Q4_K", 256, 144),
    13: TensorEncoding("Q5_K", 256, 176),
    14: TensorEncoding("Q6_K", 256, 210),
    20: TensorEncoding("IQ4_NL", 32, 18),
    23: TensorEncoding("IQ4_XS", 256, 136),
    30: TensorEncoding("BF16", 1, 2),
    34: TensorEncoding("TQ1_0", 256, 54),
    35: TensorEncoding("TQ2_0", 256, 66),
    39: TensorEncoding("MXFP4", 32, 17),
}

# Types without a decoder.
OTHERS = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
    41: "Q1_0",
}


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    shape: tuple[int, ...]  # rows first
    encoding: TensorEncoding
    blocks: npt.NDArray[np.uint8]  # [blocks, block_bytes]

    def part(self, index: int) -> "GGUFTensor":
        """A part of a stacked tensor; parts consist of whole blocks."""
        size = len(self.blocks) // self.shape[0]
        blocks = self.blocks[index * size : (index + 1) * size]
        return GGUFTensor(self.shape[1:], self.encoding, blocks)

    def rows(self, runs: Sequence[Run]) -> "GGUFTensor":
        """Rows in the order of runs; they consist of whole blocks. A run alone is not copied."""
        each = self.blocks.reshape(self.shape[0], -1, self.blocks.shape[-1])
        found = [each[first:end] for first, end in runs]
        rows = found[0] if len(found) == 1 else np.concatenate(found)
        blocks = rows.reshape(-1, self.blocks.shape[-1])
        return GGUFTensor((len(rows), *self.shape[1:]), self.encoding, blocks)


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """An entry in the list of tensors."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # bytes from the start of the first tensor


def read_gguf(path: Path) -> GGUFFile:
    """Read the fields and map the tensors."""
    with errors_naming(path):
        with path.open("rb") as file:
            # A private mapping, because torch needs writable memory. It is not written.
            content = map_file(file, mmap.ACCESS_COPY)
        header = read_header(content)
        entries = [entry_at(header.cursor) for _ in range(header.tensors)]
        alignment = cast("int", header.fields.get("general.alignment", 32))
        start = -(-header.cursor.offset // alignment) * alignment
        ranges = [range_of(start, entry) for entry in entries]
        check_length(content, max((blocks.end for blocks in ranges), default=start))
        return GGUFFile(
            header.fields,
            {
                entry.name: mapped(content, entry, blocks)
                for entry, blocks in zip(entries, ranges, strict=True)
            },
        )


def entry_at(cursor: Cursor) -> TensorEntry:
    """Read an entry. The file lists the innermost dimension first."""
    name, dimensions = cursor.string(), int(cursor.number(U32))
    shape = tuple(int(size) for size in cursor.numbers(U64, dimensions))[::-1]
    return TensorEntry(name, shape, int(cursor.number(U32)), int(cursor.number(U64)))


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The range of a tensor's blocks in the file."""

    encoding: TensorEncoding
    count: int  # blocks
    begin: int  # bytes from the start of the file

    @property
    def end(self) -> int:
        return self.begin + self.count * self.encoding.block_bytes


def range_of(start: int, entry: TensorEntry) -> BlockRange:
    """ValueError if the tensor cannot be decoded."""
    name, shape, encoding = entry.name, entry.shape, ENCODINGS.get(entry.kind)
    if encoding is None:
        kind = OTHERS.get(entry.kind, f"number {entry.kind}")
        known = ", ".join(one.name for one in ENCODINGS.values())
        raise ValueError(
            f"tensor {name!r} has type {kind}, which is not supported; take a file whose types are "
            f"among {known}"
        )
    if not shape or shape[-1] % encoding.elements:
        raise ValueError(
            f"the rows of tensor {name!r} {list(shape)} do not fill whole blocks of {encoding.name}"
        )
    return BlockRange(encoding, prod(shape) // encoding.elements, start + entry.offset)


def mapped(content: mmap.mmap, entry: TensorEntry, blocks: BlockRange) -> GGUFTensor:
    encoding = blocks.encoding
    found = np.frombuffer(content, np.uint8, blocks.end - blocks.begin, blocks.begin)
    return GGUFTensor(entry.shape, encoding, found.reshape(blocks.count, encoding.block_bytes))
