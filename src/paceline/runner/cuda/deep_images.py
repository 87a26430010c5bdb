"""Embeddings of images that are added to the inputs of layers after the first."""

# Parameters of kernels have no types.
# pyright: standard

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024  # of a program


class DeepImages:
    """A table beside that of token embeddings: see `CudaImages`. Its rows have the same ids.

    table   [rows, layers after the first, width]; zero on ranks that encode nothing
    """

    def __init__(self, table: Tensor, first_id: int, summed: Callable[[Tensor], Tensor]) -> None:
        """`summed` sums a tensor over all ranks."""
        self.table, self._first, self._summed = table, first_id, summed

    def add_before(self, layer: int, hidden: Tensor, tokens: Tensor) -> None:
        """Add to the input of this layer [positions, width] what there is for it."""
        if not 0 < layer <= self.table.shape[1]:
            return
        rows = torch.empty_like(hidden)
        width = hidden.shape[1]
        columns = min(triton.next_power_of_2(width), COLUMNS)
        _read[(len(hidden), triton.cdiv(width, columns))](
            self.table[:, layer - 1],
            tokens,
            rows,
            self._first,
            self.table.stride(0),
            WIDTH=width,
            COLUMNS=columns,
            num_warps=4,
            launch_pdl=True,
        )
        hidden.add_(self._summed(rows))


@triton.jit
def _read(table, tokens, rows, first, stride, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows of positions, which are zero for tokens."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(tokens + index).to(tl.int64) - first
    spot = table + row * stride + columns
    found = tl.load(spot, mask=(columns < WIDTH) & (row >= 0), other=0.0)
    tl.store(rows + index * WIDTH + columns, found, mask=columns < WIDTH)
