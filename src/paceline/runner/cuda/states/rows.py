"""The rows of a step, as kernels of layers with states read them."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.state_store import StateStore

CHUNK = 64  # positions


@dataclass(frozen=True, slots=True, eq=False)
class CudaStateRows:
    """Each row advances the state of its slot. Rows of one position have kernels of their own; the
    others are divided into chunks, which are computed at the same time where that is possible.

        row_start     0   1                   131   151      rows of 1, 130 and 20 positions
        chunk_row         1       1       1   2     -1 …
        first_chunk   0   0                   3

    store        the states of all slots
    slot         [rows]
    row_start    [rows + 1]
    context      [rows]; positions that are computed behind each row; 0 before it: the state is zero
    chunk_row    [chunks]; the row of each chunk; -1: there is no such chunk
    first_chunk  [rows]; the first chunk of each row
    """

    store: StateStore
    slot: Tensor
    row_start: Tensor
    context: Tensor
    chunk_row: Tensor
    first_chunk: Tensor

    @staticmethod
    def of(batch: Batch) -> "CudaStateRows | None":
        """None: the model has no states."""
        if (states := batch.states) is None:
            return None
        rows, start = batch.rows, batch.row_start
        if states.longer == 0:
            none = start[:0]
            return CudaStateRows(states.store, states.slot, start, batch.context, none, none)
        longer = min(rows, batch.positions // 2) if states.longer is None else states.longer
        count = start[1:] - start[:-1]
        chunks = torch.where(count > 1, (count + (CHUNK - 1)) // CHUNK, 0)
        ends = chunks.cumsum(0, dtype=torch.int32)
        each = torch.arange(
            longer and batch.positions // CHUNK + longer, dtype=torch.int32, device=start.device
        )
        row = torch.searchsorted(ends, each, right=True, out_int32=True)
        row.masked_fill_(row == rows, -1)
        return CudaStateRows(states.store, states.slot, start, batch.context, row, ends - chunks)

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def chunks(self) -> int:
        """Chunks that there may be."""
        return len(self.chunk_row)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """As kernels take them."""
        return self.slot, self.row_start, self.context, self.chunk_row, self.first_chunk

    def of_layer(self, layer: int) -> tuple[Tensor, ...]:
        """The states of a layer, [slots, …] each."""
        return self.store.of(layer)


# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def span(row_start, chunk_row, first_chunk, at, CHUNK: tl.constexpr):
    """Of a chunk, or with CHUNK = 1 of a row of one position: the row, its first position, and
    where the chunk begins and ends. A chunk that does not exist is empty."""
    row = at
    if CHUNK > 1:
        row = tl.load(chunk_row + at)
    there = tl.maximum(row, 0)
    first, end = tl.load(row_start + there), tl.load(row_start + there + 1)
    begin = first
    if CHUNK > 1:
        begin = first + (at - tl.load(first_chunk + there)) * CHUNK
        end = tl.where(row < 0, begin, tl.minimum(end, begin + CHUNK))
    else:
        end = tl.where(end == first + 1, end, begin)
    return there, first, begin, end


@triton.jit
def begins(row_start, context, row):
    """Whether a row begins with a state of zeros."""
    return tl.load(context + row) == tl.load(row_start + row + 1) - tl.load(row_start + row)
