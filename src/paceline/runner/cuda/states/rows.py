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
        chunk_begin       1      65     129   131    0
        chunk_end        65     129     131   151    0
        first_chunk   0   0                   3

    store        the states of all slots
    slot         [rows]
    row_start    [rows + 1]
    context      [rows]; positions that are computed with each row; if they are all its own, its
                 state is zero before it
    chunk_row    [chunks]; the row of each chunk; -1: there is no such chunk
    chunk_begin  [chunks]
    chunk_end    [chunks]
    first_chunk  [rows]; the first chunk of each row
    """

    store: StateStore
    slot: Tensor
    row_start: Tensor
    context: Tensor
    chunk_row: Tensor
    chunk_begin: Tensor
    chunk_end: Tensor
    first_chunk: Tensor

    @staticmethod
    def of(batch: Batch) -> "CudaStateRows | None":
        """None: the model has no states."""
        if (states := batch.states) is None:
            return None
        rows, start = batch.rows, batch.row_start
        known = states.store, states.slot, start, batch.context
        if states.longer == 0:
            none = start[:0]
            return CudaStateRows(*known, none, none, none, none)
        longer = min(rows, batch.positions // 2) if states.longer is None else states.longer
        count = start[1:] - start[:-1]
        chunks = torch.where(count > 1, (count + (CHUNK - 1)) // CHUNK, 0)
        ends = chunks.cumsum(0, dtype=torch.int32)
        first = ends - chunks
        each = torch.arange(
            longer and batch.positions // CHUNK + longer, dtype=torch.int32, device=start.device
        )
        row = torch.searchsorted(ends, each, right=True, out_int32=True)
        is_empty, row = row == rows, row.clamp(max=rows - 1)
        begin = start.index_select(0, row) + (each - first.index_select(0, row)) * CHUNK
        end = torch.minimum(start.index_select(0, row + 1), begin + CHUNK)
        end.masked_fill_(is_empty, 0)
        begin.masked_fill_(is_empty, 0)
        return CudaStateRows(*known, row.masked_fill_(is_empty, -1), begin, end, first)

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def chunks(self) -> int:
        """Chunks that there may be."""
        return len(self.chunk_row)

    def of_layer(self, layer: int) -> tuple[Tensor, ...]:
        """The states of a layer, [slots, …] each."""
        return self.store.of(layer)


# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def begins(row_start, context, row):
    """Whether a row begins with a state of zeros."""
    return tl.load(context + row) == tl.load(row_start + row + 1) - tl.load(row_start + row)
