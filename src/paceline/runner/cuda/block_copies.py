"""Copies of whole blocks: on the GPU, and to the host and back while steps run."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Pairs, Plan
from paceline.runner.cuda.staging import Staging
from paceline.runner.kv_store import KVStore

PIECE_BYTES = 32 << 20  # of one copy: sampled ids on their way to the host wait for one at most
PIECES = 8  # in flight at once; with more, steps wait
RING_BYTES = PIECES * PIECE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class CopyBuffer:
    """GPU memory for blocks in transit: filled on one stream, then read on the other."""

    room: Tensor  # [blocks, words]
    filled: torch.cuda.Event
    read: torch.cuda.Event


class BlockCopies:
    """The stream of the steps reads and writes the store; `stream` reads and writes host memory.

        steps    … step 6 | gather | step 7 | step 8          | scatter | step 9 …
        stream                     └ to the host ─┘ from the host ─┘

    So both memories are read and written in the order of plans, whatever overlaps: a block may be
    reused once it is gathered, and a copy from the host starts after the copy to it has ended. A
    copy from the host starts when its plan is launched, beside the steps that still run. A ring of
    buffers connects the two streams; each buffer is filled again once it has been read.
    """

    def __init__(self, kv: KVStore, host_blocks: int, piece_bytes: int = PIECE_BYTES) -> None:
        # Blocks are copied as wide integers. Head sizes are even, so 4 bytes always divide them.
        word = torch.int64 if kv.block_bytes % torch.int64.itemsize == 0 else torch.int32
        self._store = kv.content.flatten(1).view(word)  # [blocks, words]
        device, words = self._store.device, self._store.shape[1]
        self.host = torch.empty((host_blocks, words), dtype=word, pin_memory=True)
        self.stream = torch.cuda.Stream(device)
        self._size = max(min(piece_bytes // kv.block_bytes, host_blocks), 1)  # blocks of a piece
        shape = (min(PIECES, host_blocks), self._size, words)
        rooms = torch.empty(shape, dtype=word, device=device)
        self._pieces = deque(
            CopyBuffer(room, torch.cuda.Event(), torch.cuda.Event()) for room in rooms
        )
        self._staging = Staging(device)

    def carry_out(self, plan: Plan) -> None:
        """Start all copies of a plan, in the order of `Plan`, before its step."""
        self.copy(plan.copies)
        self.out(plan.swap_out)
        self.back(plan.swap_in)

    def copy(self, pairs: Pairs) -> None:
        """Copy blocks on the GPU. All are read before any is written."""
        if pairs:
            sources, targets = self._staging.send(*np.array(pairs, np.int32).T.copy())
            self._store.index_copy_(0, targets.long(), self._store.index_select(0, sources))

    def out(self, pairs: Pairs) -> None:
        """Copy blocks from the GPU to the host."""
        steps = torch.cuda.current_stream()
        for piece, device, host in self._parts([(there, here) for here, there in pairs]):
            room = piece.room[: len(host)]
            steps.wait_event(piece.read)
            torch.index_select(self._store, 0, device, out=room)
            piece.filled.record(steps)
            self.stream.wait_event(piece.filled)
            with torch.cuda.stream(self.stream):
                for here, there in runs(host):
                    self.host[there].copy_(room[here], non_blocking=True)
            piece.read.record(self.stream)

    def back(self, pairs: Pairs) -> None:
        """Copy blocks from the host to the GPU."""
        steps = torch.cuda.current_stream()
        for piece, device, host in self._parts(list(pairs)):
            room = piece.room[: len(host)]
            self.stream.wait_event(piece.read)
            with torch.cuda.stream(self.stream):
                for here, there in runs(host):
                    room[here].copy_(self.host[there], non_blocking=True)
            piece.filled.record(self.stream)
            steps.wait_event(piece.filled)
            self._store.index_copy_(0, device.long(), room)
            piece.read.record(steps)

    def _parts(
        self, pairs: list[tuple[int, int]]
    ) -> Iterator[tuple[CopyBuffer, Tensor, list[int]]]:
        """Split pairs (host, GPU) by the size of a buffer. Yield the buffer, the GPU blocks as a
        tensor, and the host blocks in ascending order, so that adjacent ones are one copy."""
        pairs = sorted(pairs)
        for at in range(0, len(pairs), self._size):
            host, device = zip(*pairs[at : at + self._size], strict=True)
            piece = self._pieces[0]
            self._pieces.rotate(-1)
            yield piece, self._staging.send(np.array(device, np.int32))[0], list(host)


def runs(blocks: list[int]) -> Iterator[tuple[slice, slice]]:
    """Yield runs of adjacent blocks: their places in the list, and the blocks."""
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            first = blocks[begin]
            yield slice(begin, end), slice(first, first + end - begin)
            begin = end
