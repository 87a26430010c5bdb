"""Whole blocks on the move: within the card, and to the host and back while steps run."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Pairs, Plan
from paceline.runner.cuda.staging import Staging
from paceline.runner.kv_store import KVStore

PIECE_BYTES = 32 << 20  # of a copy at most: ids that come back meanwhile wait for no more of it
PIECES = 8  # on their way at once; if there are more, steps wait
RING_BYTES = PIECES * PIECE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class CopyBuffer:
    """Room on the card for blocks on their way: filled on one stream, then read on the other."""

    room: Tensor  # [blocks, words]
    filled: torch.cuda.Event
    read: torch.cuda.Event


class BlockCopies:
    """The store is touched on the stream of the steps alone, and the host's memory on `stream`
    alone.

        steps    … step 6 | gather | step 7 | step 8          | scatter | step 9 …
        stream                     └ to the host ─┘ from the host ─┘

    So the blocks of each are written and read in the order of plans, whatever overlaps: a block is
    free for others once it is gathered, and the host has all of one before it is fetched. What
    comes back begins when its plan is launched, beside the steps that run by then. Between the
    two streams lies a ring of pieces, each filled again when it has been read.
    """

    def __init__(self, kv: KVStore, host_blocks: int, piece_bytes: int = PIECE_BYTES) -> None:
        # Blocks are moved as wide numbers, whatever they hold. Heads are even, so 4 bytes fit.
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
        """Every move of a plan, in the order it asks for, before its step."""
        self.copy(plan.copies)
        self.out(plan.swap_out)
        self.back(plan.swap_in)

    def copy(self, pairs: Pairs) -> None:
        """Block to block on the card; all are read before any is written."""
        if pairs:
            sources, targets = self._staging.send(*np.array(pairs, np.int32).T.copy())
            self._store.index_copy_(0, targets.long(), self._store.index_select(0, sources))

    def out(self, pairs: Pairs) -> None:
        """Blocks of the card to blocks of the host."""
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
        """Blocks of the host to blocks of the card."""
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
        """Pairs of host and card, as many at a time as a piece holds: the piece, the blocks of the
        card as a column there, and those of the host, which rise so that neighbours meet."""
        pairs = sorted(pairs)
        for at in range(0, len(pairs), self._size):
            host, device = zip(*pairs[at : at + self._size], strict=True)
            piece = self._pieces[0]
            self._pieces.rotate(-1)
            yield piece, self._staging.send(np.array(device, np.int32))[0], list(host)


def runs(blocks: list[int]) -> Iterator[tuple[slice, slice]]:
    """Neighbours that stand together: where they stand, and which blocks they are."""
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            first = blocks[begin]
            yield slice(begin, end), slice(first, first + end - begin)
            begin = end
