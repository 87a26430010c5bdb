"""Attention by kernels of our own: split contexts for decodes, tiles of queries for the rest."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from typing import Any

import torch
import triton
from torch import Tensor

from paceline.core.arrays import I32
from paceline.runner.attention.backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.cuda.attention_kernels import decode, tiles
from paceline.runner.kv_store import KVStore

BUSY = 384  # programs that fill a large card, about three on each of its processors
# From so many contexts on: splits, and tiles of each at least. What was fastest on an H200 for
# contexts as different as those of a script; joining costs more than an even load gains when
# there are many.
CUTS = ((768, 1, 1), (384, 2, 12), (192, 4, 4), (64, 8, 1))
LEAST = 16  # rows and columns of the smallest product that tensor cores take
MOST_SPLITS = 32
FLOAT_BYTES = 4  # of float32, which tensor cores do not multiply exactly
PAIRS = 64  # of positions and heads, in a tile of queries
FEW = 2048  # positions, up to which longer tiles of keys are faster
TILE = 64  # cells that a program reads at a time


def cut(contexts: int) -> tuple[int, int]:
    """Into how many splits, at most, and of how many tiles at least, if there are so many
    contexts to read."""
    for least, splits, portion in CUTS:
        if contexts >= least:
            return splits, portion
    return min(-(-BUSY // contexts), MOST_SPLITS), 1


class Triton:
    """Reads block tables on the card, so that a step can be launched without the host's eyes.

    Everything that depends on the step is in the tensors of its batch: kernels captured in a
    graph do the work of whatever these hold when the graph is replayed.
    """

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        if batch.positions == batch.rows:
            return Decodes(batch, kv)
        bounds = torch.arange(2, dtype=torch.int32, device=kv.content.device) * batch.rows
        return Tiles(batch, kv, bounds, batch.rows)

    def hold(self, batch: Batch, kv: KVStore, heads: int) -> "Decodes":
        """Decodes for a graph; the batch is the memory that every replay reads."""
        return Decodes(batch, kv)

    def hold_rows(self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int) -> "Mixed":
        """Rows of any length for a graph: up to `bounds[0]` those of one position, and up to
        `bounds[1]` the others, of which there are `longer` at most."""
        return Mixed(Decodes(batch, kv, bounds), Tiles(batch, kv, bounds, longer))


class Decodes:
    """Rows of one position each. Where they are few, several programs share a context.

    context    | tile | tile | tile | tile | tile |
    splits     └ program 0 ─────────┘ program 1 ──┘     the one that ends last joins the results
    """

    def __init__(self, batch: Batch, kv: KVStore, bounds: Tensor | None = None) -> None:
        self._batch, self._kv, self._bounds = batch, kv, bounds
        self._splits, self._portion = cut(batch.rows * kv.kv_heads)
        # How many programs of a row and a head have ended; whoever joins them sets it back.
        self._ended = torch.zeros(
            (batch.rows, kv.kv_heads), dtype=torch.int32, device=kv.content.device
        )

    def lay_out(self) -> None:
        """The kernels read the batch as it is."""

    def refresh(self, contexts: I32) -> None:
        """The kernels see by themselves who reads what."""

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.attend_into(out, query, layer, window, scale)
        return out

    def attend_into(
        self, out: Tensor, query: Tensor, layer: int, window: int | None, scale: float
    ) -> None:
        batch, kv, splits, bounds = self._batch, self._kv, self._splits, self._bounds
        rows, (_, heads, dim) = batch.rows, query.shape
        parts, peaks = out, out
        if splits > 1:
            on: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
            parts = torch.empty((rows, heads, splits, dim), **on)
            peaks = torch.empty((rows, heads, splits), **on)
        decode[(kv.kv_heads, rows, splits)](
            query,
            kv.content,
            batch.block_table,
            batch.context,
            out,
            parts,
            peaks,
            self._ended,
            self._ended if bounds is None else bounds,
            scale,
            window or 0,
            query.stride(0),
            batch.block_table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * layer,
            kv.content.stride(2),
            HEADS=heads,
            KV_HEADS=kv.kv_heads,
            GROUP=max(triton.next_power_of_2(heads // kv.kv_heads), LEAST),
            DIM=dim,
            WIDTH=max(triton.next_power_of_2(dim), LEAST),
            BLOCK=kv.block_size,
            CELLS=TILE,
            SPLITS=splits,
            PARTS=triton.next_power_of_2(splits),
            PORTION=self._portion,
            BOUNDED=bounds is not None,
            num_warps=4,
            num_stages=3 if query.element_size() < FLOAT_BYTES else 1,
            launch_pdl=True,
        )


class Tiles:
    """Rows of any length, cut into tiles of positions; heads that share keys lie beside them.

        row_start   0           5   6               11     tiles of 4
        tile        0       1   2   3       4       .      row r has its first at start // 4 + r

    Where a row has fewer tiles than there are places for, the last place stays empty: so the
    number of programs follows from positions and rows alone, without a look at their lengths.
    """

    def __init__(self, batch: Batch, kv: KVStore, bounds: Tensor, rows: int) -> None:
        self._batch, self._kv, self._bounds, self._rows = batch, kv, bounds, rows

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.attend_into(out, query, layer, window, scale)
        return out

    def attend_into(
        self, out: Tensor, query: Tensor, layer: int, window: int | None, scale: float
    ) -> None:
        batch, kv = self._batch, self._kv
        positions, heads, dim = query.shape
        is_small = query.element_size() < FLOAT_BYTES
        group = heads // kv.kv_heads
        pairs = max(PAIRS if is_small else 32, triton.next_power_of_2(group))
        tile = pairs // group
        tiles[(kv.kv_heads, positions // tile + self._rows)](
            query,
            kv.content,
            batch.block_table,
            batch.context,
            batch.row_start,
            out,
            self._bounds,
            scale,
            window or 0,
            query.stride(0),
            batch.block_table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * layer,
            kv.content.stride(2),
            HEADS=heads,
            KV_HEADS=kv.kv_heads,
            TILE=tile,
            PAIRS=pairs,
            DIM=dim,
            WIDTH=max(triton.next_power_of_2(dim), LEAST),
            BLOCK=kv.block_size,
            CELLS=TILE if is_small and positions <= FEW else 32,
            num_warps=4,
            num_stages=2 if is_small else 1,
            launch_pdl=True,
        )


class Mixed:
    """Rows of one position by one kernel, and those behind them by the other."""

    def __init__(self, singles: Decodes, others: Tiles) -> None:
        self._singles, self._others = singles, others

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._singles.attend_into(out, query, layer, window, scale)
        self._others.attend_into(out, query, layer, window, scale)
        return out
