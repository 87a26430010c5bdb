"""Copies of small arrays between host and GPU, through pinned memory and without waiting."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.runner.batch import Batch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchWithLengths(Batch):
    """A batch with its lengths on the host, for backends that plan there."""

    starts: I32  # [rows + 1]; row_start
    contexts: I32  # [rows]; context


def lengths(batch: Batch) -> tuple[I32, I32]:
    """Return row starts and contexts on the host. A plain batch needs a copy from the GPU."""
    if isinstance(batch, BatchWithLengths):
        return batch.starts, batch.contexts
    read = (batch.row_start, batch.context)
    starts, contexts = (tensor.cpu().numpy().astype(np.int32) for tensor in read)
    return starts, contexts


LEAST = 1 << 16  # numbers of 32 bits
# Kernels are compiled for pointers to multiples of 16 bytes, and again for others.
ALIGNED = 4  # numbers
PADDING = np.zeros(ALIGNED, np.int32)


def pinned_numbers(size: int) -> Tensor:
    """GraphMemory of the host that a GPU copies from and to by itself."""
    return torch.empty(size, dtype=torch.int32, pin_memory=True)


class Staging:
    """Sends the arrays of a step in one copy. Pinned memory is reused once its copy has ended."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def send_into(self, target: Tensor, *content: np.ndarray) -> None:
        """Overwrite the target with numbers of 32 bits, one array behind the other."""
        size = sum(part.size for part in content)
        pinned = self._room(size)
        np.concatenate([part.reshape(-1) for part in content], out=pinned.numpy()[:size])
        target.view(-1).copy_(pinned[:size], non_blocking=True)
        self._keep(pinned)

    def send(self, *columns: np.ndarray) -> list[Tensor]:
        """Return arrays of 32-bit numbers on the GPU, each at an aligned offset."""
        pieces: list[np.ndarray] = []
        for column in columns:
            pieces += column.view(np.int32), PADDING[: -len(column) % ALIGNED]
        sizes = list(map(len, pieces))
        total = sum(sizes)
        pinned = self._room(total)
        np.concatenate(pieces, out=pinned.numpy()[:total])
        there = pinned[:total].to(self._device, non_blocking=True)
        self._keep(pinned)
        parts = torch.split(there, sizes)[::2]
        return [
            part.view(torch.float32) if column.dtype == np.float32 else part
            for part, column in zip(parts, columns, strict=True)
        ]

    def _keep(self, pinned: Tensor) -> None:
        event = torch.cuda.Event()
        event.record()
        self._free.append((event, pinned))

    def _room(self, size: int) -> Tensor:
        if self._free and self._free[0][0].query():
            pinned = self._free.popleft()[1]
            if len(pinned) >= size:
                return pinned  # a smaller one is dropped for a larger one
        return pinned_numbers(max(size, LEAST))


class Readback:
    """Copies token ids to the host. `read` waits for the copy of its ticket and nothing else."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._free: list[tuple[torch.cuda.Event, Tensor]] = []

    def fetch(self, ids: Tensor) -> tuple[torch.cuda.Event, Tensor, int]:
        if not self._free:
            self._free.append((torch.cuda.Event(), pinned_numbers(self._rows)))
        event, pinned = self._free.pop()
        if len(pinned) < len(ids):  # rows with drafts have several
            pinned = pinned_numbers(len(ids))
        pinned[: len(ids)].copy_(ids, non_blocking=True)
        event.record()
        return event, pinned, len(ids)

    def read(self, ticket: tuple[torch.cuda.Event, Tensor, int]) -> np.ndarray:
        event, pinned, count = ticket
        event.synchronize()
        found = pinned.numpy()[:count].copy()
        self._free.append((event, pinned))
        return found
