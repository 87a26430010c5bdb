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
    """Each row advances the state of its slot. Rows of one position, and rows with drafts, have
    kernels of their own; the others are divided into chunks, which are computed at the same time
    where that is possible.

        row_start     0   1                   131   151      rows of 1, 130 and 20 positions
        chunk_row         1       1       1   2     -1 …
        chunk_begin       1      65     129   131    0
        chunk_end        65     129     131   151    0
        first_chunk   0   0                   3     4

    store        the states of all slots
    slot         [rows]
    row_start    [rows + 1]
    context      [rows]; positions that are computed with each row; if they are all its own, its
                 state is zero before it
    chunk_row    [chunks]; the row of each chunk; -1: there is no such chunk
    chunk_begin  [chunks]
    chunk_end    [chunks]
    first_chunk  [rows + 1]; the first chunk of each row
    end          [1]; positions of all rows, where they may be fewer than those of the step
    drafts       [rows]; of each row, whose state stays as it is; None: no row has some
    """

    store: StateStore
    slot: Tensor
    row_start: Tensor
    context: Tensor
    chunk_row: Tensor
    chunk_begin: Tensor
    chunk_end: Tensor
    first_chunk: Tensor
    end: Tensor
    drafts: Tensor | None = None

    @staticmethod
    def of(batch: Batch) -> "CudaStateRows | None":
        """None: the model has no states."""
        if (states := batch.states) is None:
            return None
        rows, start = batch.rows, batch.row_start
        known, drafts = (states.store, states.slot, start, batch.context), states.drafts
        none = start[:0]
        # A copy is aligned, so that kernels are compiled for it once.
        last = none if states.longer == 0 and drafts is None else start[rows:].clone()
        if states.longer == 0:
            return CudaStateRows(*known, none, none, none, none, last, drafts)
        longer = min(rows, batch.positions // 2) if states.longer is None else states.longer
        count = start[1:] - start[:-1]
        if drafts is not None:
            count = count - drafts
        chunks = torch.where(count > 1, (count + (CHUNK - 1)) // CHUNK, 0)
        first = torch.zeros_like(start)
        ends = torch.cumsum(chunks, 0, dtype=torch.int32, out=first[1:])
        each = torch.arange(
            longer and batch.positions // CHUNK + longer, dtype=torch.int32, device=start.device
        )
        row = torch.searchsorted(ends, each, right=True, out_int32=True)
        is_empty, row = row == rows, row.clamp(max=rows - 1)
        begin = start.index_select(0, row) + (each - first.index_select(0, row)) * CHUNK
        end = torch.minimum(start.index_select(0, row + 1), begin + CHUNK)
        end.masked_fill_(is_empty, 0)
        begin.masked_fill_(is_empty, 0)
        row.masked_fill_(is_empty, -1)
        return CudaStateRows(*known, row, begin, end, first, last, drafts)

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def is_decode(self) -> bool:
        """Whether each row has one position."""
        return not self.chunks and self.drafts is None

    @property
    def chunks(self) -> int:
        """Chunks that there may be."""
        return len(self.chunk_row)

    def of_layer(self, layer: int) -> tuple[Tensor, ...]:
        """The states of a layer, [slots, …] each."""
        return self.store.of(layer)

    def drafts_of(self, layer: int) -> tuple[Tensor, ...]:
        """Where rows with drafts keep the inputs of a layer, as `DraftInputs` has them: [slots,
        positions, …] each."""
        kept = self.store.drafts
        assert kept is not None, "no room for inputs of rows with drafts"
        number = self.store.layers.index(layer)
        return tuple(one[number] for one in (kept.tails, kept.decay, kept.key, kept.value))


# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def begins(row_start, context, row):
    """Whether a row begins with a state of zeros."""
    return tl.load(context + row) == tl.load(row_start + row + 1) - tl.load(row_start + row)
