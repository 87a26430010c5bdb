"""Blocks of a KV store as bytes, for threads beside the one that runs steps."""

from collections.abc import Iterable, Sequence
from threading import Lock

import numpy as np
import torch

from paceline.runner.kv_store import KVStore
from paceline.runner.lazy_memory import lazy_zeros

STAGED_BYTES = 64 << 20  # page-locked memory that copies to and from other memory go through


class BlockBytes:
    """Reads and writes whole blocks. On a GPU it has a stream of its own, so that copies run beside
    the steps; nothing orders the two, which is up to the caller."""

    def __init__(self, kv: KVStore) -> None:
        self.block_bytes = kv.block_bytes
        self.content = kv.content.flatten(1).view(torch.uint8)  # [blocks, block_bytes]
        self._on_gpu = self.content.device.type == "cuda"
        self._lock = Lock()  # of the stream and its page-locked memory
        if self._on_gpu:
            self._stream = torch.cuda.Stream(self.content.device)
            rows = max(STAGED_BYTES // self.block_bytes, 1)
            self._staged = torch.empty((rows, self.block_bytes), dtype=torch.uint8, pin_memory=True)

    def host_memory(self, rows: int) -> np.ndarray:
        """Host memory, [rows, block_bytes], which copies to and from a GPU are fastest with."""
        shape = rows, self.block_bytes
        if self._on_gpu:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
        return lazy_zeros(shape, torch.uint8).numpy()

    def follow_steps(self) -> None:
        """Let later copies wait for the steps that this thread has launched. On a CPU they have
        ended."""
        if self._on_gpu:
            self._stream.wait_stream(torch.cuda.current_stream(self.content.device))

    def read(self, blocks: Sequence[int]) -> np.ndarray:
        """The content of blocks, [blocks, block_bytes]."""
        rows = np.empty((len(blocks), self.block_bytes), np.uint8)
        self.read_into(blocks, rows)
        return rows

    def read_into(self, blocks: Sequence[int], rows: Iterable[np.ndarray]) -> None:
        """Copy blocks to rows of bytes."""
        if self._on_gpu:
            self._copy(blocks, list(rows), to_host=True)
            return
        for block, row in zip(blocks, rows, strict=True):
            row[:] = self.content[block].numpy()

    def write(self, blocks: Sequence[int], rows: Iterable[np.ndarray]) -> None:
        """Copy rows of bytes to blocks."""
        if self._on_gpu:
            self._copy(blocks, list(rows), to_host=False)
            return
        for block, row in zip(blocks, rows, strict=True):
            self.content[block].numpy()[:] = row

    def _copy(self, blocks: Sequence[int], rows: list[np.ndarray], to_host: bool) -> None:
        """Copy between a GPU and the host, through page-locked memory unless `rows` are."""
        is_pinned = len(rows) > 0 and torch.from_numpy(rows[0]).is_pinned()
        step = len(blocks) if is_pinned else len(self._staged)
        with self._lock, torch.cuda.stream(self._stream):
            for first in range(0, len(blocks), max(step, 1)):
                part = slice(first, first + step)
                own = [torch.from_numpy(row) for row in rows[part]]
                via = own if is_pinned else list(self._staged[: len(own)])
                if not (to_host or is_pinned):
                    for staged, row in zip(via, own, strict=True):
                        staged.copy_(row)
                for block, row in zip(blocks[part], via, strict=True):
                    ends = (row, self.content[block]) if to_host else (self.content[block], row)
                    ends[0].copy_(ends[1], non_blocking=True)
                self._stream.synchronize()
                if to_host and not is_pinned:
                    for staged, row in zip(via, own, strict=True):
                        row.copy_(staged)
