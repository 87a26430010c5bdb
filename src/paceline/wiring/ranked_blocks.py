"""The blocks of a model that is divided among ranks, as bytes."""

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

import numpy as np
import torch

from paceline.kv.connector import Bytes
from paceline.runner.block_bytes import BlockBytes
from paceline.runner.lazy_memory import lazy_zeros
from paceline.wiring.rank_wire import CopyBlocks, ShareRows
from paceline.wiring.tensor_ranks import RankProcesses

SHARED_BYTES = 32 << 20  # of each rank


class RankedBlocks:
    """Reads and writes whole blocks, as `BlockBytes` does. A row of bytes has the parts of all
    ranks. Those of other ranks pass through memory that all ranks share:

        row      | rank 0 | rank 1 | rank 2 | ...
        shared            [ranks - 1, rows, part_bytes]

    If a rank cannot copy its part, the copy has failed.
    """

    def __init__(self, own: BlockBytes, ranks: RankProcesses) -> None:
        self._own, self._ranks, self.ranks = own, ranks, ranks.size
        self._part, self.block_bytes = own.block_bytes, own.block_bytes * ranks.size
        self._rows = max(SHARED_BYTES // self._part, 1)
        path, shape = ranks.new_path("rows"), (ranks.size - 1, self._rows, self._part)
        self._lock = Lock()  # of the shared memory
        self._shared: Bytes = np.memmap(path, np.uint8, "w+", shape=shape)
        with ranks.together(ShareRows(str(path), self._rows)):
            pass
        path.unlink()  # all ranks have mapped it

    def host_memory(self, rows: int) -> Bytes:
        """Host memory, [rows, block_bytes]. It is not page-locked: copies pass through other
        memory anyway."""
        return lazy_zeros((rows, self.block_bytes), torch.uint8).numpy()

    def read(self, blocks: Sequence[int]) -> Bytes:
        """The content of blocks, [blocks, block_bytes]."""
        rows = np.empty((len(blocks), self.block_bytes), np.uint8)
        self.read_into(blocks, rows)
        return rows

    def read_into(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        """Copy blocks to rows of bytes."""
        with self._lock:
            for some, into in self._pieces(blocks, list(rows)):
                with self._ranks.together(CopyBlocks(some, to_host=True)):
                    self._own.read_into(some, [row[: self._part] for row in into])
                for at, row in enumerate(into):
                    self._of_others(row)[:] = self._shared[:, at]

    def write(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        """Copy rows of bytes to blocks."""
        with self._lock:
            for some, content in self._pieces(blocks, list(rows)):
                for at, row in enumerate(content):
                    self._shared[:, at] = self._of_others(row)
                with self._ranks.together(CopyBlocks(some, to_host=False)):
                    self._own.write(some, [row[: self._part] for row in content])

    def _of_others(self, row: Bytes) -> Bytes:
        """The parts of the other ranks, [ranks - 1, part_bytes]."""
        return row[self._part :].reshape(-1, self._part)

    def _pieces(
        self, blocks: Sequence[int], rows: list[Bytes]
    ) -> Iterator[tuple[tuple[int, ...], list[Bytes]]]:
        """As many blocks at a time as the shared memory has room for."""
        for first in range(0, len(blocks), self._rows):
            piece = slice(first, first + self._rows)
            yield tuple(blocks[piece]), rows[piece]
