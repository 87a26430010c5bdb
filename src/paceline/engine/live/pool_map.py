"""The blocks of a pool as a map of a bounded number of cells."""

import numpy as np

from paceline.core.arrays import I64
from paceline.engine.live.frames import BLOCK_KINDS, BlockCells
from paceline.kv.pool import BlockPool

MOST_CELLS = 1024
PART_BLOCKS = 8192  # that are read at once, which takes about half a millisecond
LETTERS = np.frombuffer(BLOCK_KINDS, np.uint8)


class PoolMap:
    """Reads one part of the pool after another; `_counts[cell, kind]` is how many blocks of a cell
    are of each kind, by what was read last."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._per_cell = max(-(-pool.size // MOST_CELLS), 1)
        cells = -(-pool.size // self._per_cell)
        self._part = max(PART_BLOCKS // self._per_cell, 1)  # cells
        self._counts: I64 = np.zeros((cells, len(BLOCK_KINDS)), np.int64)
        self._read_at = [0.0] * -(-cells // self._part)  # by part
        self._next = 0  # part

    def read_all(self, now: float) -> None:
        for _ in self._read_at:
            self.read(now)

    def read(self, now: float) -> None:
        """Read the next part."""
        if not self._read_at:
            return
        part, self._next = self._next, (self._next + 1) % len(self._read_at)
        begin = part * self._part
        end = min(begin + self._part, len(self._counts))
        first, last = begin * self._per_cell, min(end * self._per_cell, self._pool.size)
        cell = np.arange(last - first) // self._per_cell
        kinds = len(BLOCK_KINDS)
        found = np.bincount(
            cell * kinds + self._pool.kinds(first, last), minlength=(end - begin) * kinds
        )
        self._counts[begin:end] = found.reshape(end - begin, kinds)
        self._read_at[part] = now

    def cells(self, now: float) -> BlockCells:
        free, cached, held, shared = self._counts.sum(axis=0).tolist()
        return BlockCells(
            size=self._pool.size,
            held=held,
            shared=shared,
            cached=cached,
            free=free,
            per_cell=self._per_cell,
            cells=LETTERS[self._counts.argmax(axis=1)].tobytes().decode("ascii"),
            age=now - min(self._read_at, default=now),
        )
