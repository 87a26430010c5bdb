"""Attention by Triton kernels: split contexts for decodes, tiles of queries for longer rows."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from paceline.core.arrays import I32
from paceline.runner.attention.backend import Prepared, Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.decode_attention import decode
from paceline.runner.cuda.kernels.layers import HeadRotation
from paceline.runner.cuda.kernels.prefill_attention import PrefillAttention
from paceline.runner.cuda.kernels.tiled_attention import tiles
from paceline.runner.kv_store import KVStore

BUSY = 384  # programs that fill a large GPU, about three on each multiprocessor
LEAST = 16  # rows and columns of the smallest product on tensor cores
MOST_SPLITS = 32
FLOAT_BYTES = 4  # of float32, which tensor cores do not multiply exactly
PAIRS = 64  # of positions and heads, in a tile of queries
TILE, SHORT = 64, 32  # cells: with very many or very few contexts, shorter tiles are faster
STAGES = 3  # tiles in flight
FEW_DIMS = 128  # head size up to which two warps are enough
FEW = 2048  # positions, up to which longer tiles of keys are faster
ATTENDING = {"NEW": False, "NORMED": False, "BY_ROW": False}  # to keys that are in the store


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """How the contexts of a step are split among programs."""

    splits: int  # most programs of a context
    portion: int = 1  # fewest tiles of a program
    tile: int = TILE  # cells read at a time
    whole: int = 0  # with so many contexts or more, none is split; for kernels that know the number


# By the least number of contexts. Fastest on an H200, for contexts of very different lengths and
# for equal ones. Splitting balances the load, and joining the parts costs time. If there are a few
# more contexts than programs that run at once, those few would otherwise run alone at the end.
CONTEXT_SPLITS = (
    (1600, ContextSplit(1, tile=SHORT)),
    (1408, ContextSplit(1)),
    (1280, ContextSplit(2, portion=20)),
    (1088, ContextSplit(3, portion=12)),
    (832, ContextSplit(1)),
    (768, ContextSplit(2, portion=12)),
    (513, ContextSplit(3, portion=4)),
    (384, ContextSplit(2, portion=12)),
    (192, ContextSplit(4, portion=4)),
    (128, ContextSplit(8, portion=4)),
    (64, ContextSplit(8)),
)
# In a mixed graph, any number of contexts up to its size may occur, often far fewer.
BESIDE_LEAST, BESIDE = 384, ContextSplit(3, portion=12, whole=960)
# Steps that are launched kernel by kernel have any number of contexts. Each split is a kernel of
# its own to compile, so all of them have the same one.
OUTSIDE_GRAPHS = ContextSplit(8, portion=4)


def context_split(contexts: int) -> ContextSplit:
    """The split for a number of contexts."""
    for least, found in CONTEXT_SPLITS:
        if contexts >= least:
            return found
    return ContextSplit(min(-(-BUSY // contexts), MOST_SPLITS), tile=SHORT)


class Triton:
    """Reads block tables on the GPU, so that the host launches a step without knowing them.

    Everything that depends on the step is in the tensors of its batch: kernels in a graph read
    their content when the graph is replayed.
    """

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        if batch.positions == batch.rows:
            return DecodeAttention(batch, kv, OUTSIDE_GRAPHS)
        bounds = torch.arange(2, dtype=torch.int32, device=kv.content.device) * batch.rows
        return TiledAttention(batch, kv, bounds, batch.rows)

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> "FusedDecodeAttention":
        """Prepare decodes for a graph. Every replay reads the tensors of the batch."""
        return FusedDecodeAttention(batch, kv, context_split(batch.rows * kv.kv_heads))

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> "MixedAttention":
        """Prepare rows of any length for a graph: rows of one position up to `bounds[0]`, and at
        most `longer` others up to `bounds[1]`."""
        others: TiledAttention | PrefillAttention = TiledAttention(batch, kv, bounds, longer)
        if PrefillAttention.can(kv, queries, batch.positions):
            others = PrefillAttention(batch, kv, bounds, longer, queries.heads)
        contexts = batch.rows * kv.kv_heads
        split = BESIDE if contexts >= BESIDE_LEAST else context_split(contexts)
        return MixedAttention(DecodeAttention(batch, kv, split, bounds), others)


class DecodeAttention:
    """Rows of one position each. If there are few, several programs share a context.

    context    | tile | tile | tile | tile | tile |
    splits     └ program 0 ─────────┘ program 1 ──┘     the last one to end joins the results
    """

    def __init__(
        self, batch: Batch, kv: KVStore, split: ContextSplit, bounds: Tensor | None = None
    ) -> None:
        self._batch, self._kv, self._split, self._bounds = batch, kv, split, bounds
        self._tables = batch.block_table.unbind()
        # How many programs of a row and a head have ended. The one that joins resets it.
        self._ended = torch.zeros(
            (batch.rows, kv.kv_heads), dtype=torch.int32, device=kv.content.device
        )

    def lay_out(self) -> None:
        """Nothing to do: the kernels read the batch itself."""

    def refresh(self, contexts: I32) -> None:
        """Nothing to do: the kernels read the contexts on the GPU."""

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.attend_into(out, query, layer, window, scale, cap, sinks)
        return out

    def attend_into(
        self,
        out: Tensor,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None,
        sinks: Tensor | None,
    ) -> None:
        how = layer, window, scale, cap, sinks
        self._run(out, query, (query, query, 0.0), how, ATTENDING)

    def _run(
        self,
        out: Tensor,
        query: Tensor,
        given: tuple[Tensor, Tensor, float],
        how: tuple[int, int | None, float, float | None, Tensor | None],
        sizes: dict[str, bool],
    ) -> None:
        batch, kv, bounds, sharing = self._batch, self._kv, self._bounds, self._split
        (_, heads, dim), (layer, window, scale, cap, sinks) = out.shape, how
        is_small = query.element_size() < FLOAT_BYTES
        table, place = self._tables[kv.groups.group[layer]], kv.groups.place[layer]
        parts, peaks = out, out
        if sharing.splits > 1:
            on: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
            parts = torch.empty((batch.rows, heads, sharing.splits, dim), **on)
            peaks = torch.empty((batch.rows, heads, sharing.splits), **on)
        programs = batch.rows + (bounds is not None)  # one waits for the kernel that runs beside
        decode[(kv.kv_heads, programs, sharing.splits)](
            query,
            kv.content,
            table,
            batch.context,
            out,
            parts,
            peaks,
            self._ended,
            self._ended if bounds is None else bounds,
            *given,
            query if sinks is None else sinks,
            scale,
            window or 0,
            query.stride(0),
            table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * place,
            kv.content.stride(2),
            sharing.portion,
            HEADS=heads,
            KV_HEADS=kv.kv_heads,
            GROUP=max(triton.next_power_of_2(heads // kv.kv_heads), LEAST),
            DIM=dim,
            WIDTH=max(triton.next_power_of_2(dim), LEAST),
            BLOCK=kv.block_size,
            CELLS=sharing.tile,
            SPLITS=sharing.splits,
            PARTS=triton.next_power_of_2(sharing.splits),
            WHOLE=sharing.whole,
            BOUNDED=bounds is not None,
            CAP=cap or 0.0,
            SINKS=sinks is not None,
            num_warps=2 if is_small and dim <= FEW_DIMS and not sizes["NEW"] else 4,
            num_stages=STAGES if is_small else 1,
            launch_pdl=True,
            **sizes,
        )


class FusedDecodeAttention(DecodeAttention):
    """Rows of one position each, none of which reads what another one writes in this step. With few
    rows, the kernel also rotates queries and keys and writes them to the store."""

    def attend_new(
        self,
        qkv: Tensor,
        turn: HeadRotation,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """`rotate_and_store` and attention in one kernel, for few rows.

        `qkv` is [rows, heads + 2 * kv_heads, head_dim]. The kernel starts before the product that
        computes it has ended, and after whatever wrote the batch.
        """
        rows, total, dim = qkv.shape
        heads = total - 2 * self._kv.kv_heads
        out = torch.empty((rows, heads, dim), dtype=qkv.dtype, device=qkv.device)
        given = turn.turns, qkv if turn.factor is None else turn.factor, turn.floor
        sizes = {"NEW": True, "NORMED": turn.factor is not None, "BY_ROW": turn.is_by_row}
        self._run(out, qkv, given, (layer, window, scale, cap, sinks), sizes)
        return out


class TiledAttention:
    """Rows of any length, cut into tiles of positions and heads that share keys.

        row_start   0           5   6               11     tiles of 4
        tile        0       1   2   3       4       .      row r has its first at start // 4 + r

    If a row needs fewer tiles than it has places, the last place stays empty. So the number of
    programs depends on the number of positions and rows alone, not on the lengths of rows.
    """

    def __init__(self, batch: Batch, kv: KVStore, bounds: Tensor, rows: int) -> None:
        self._batch, self._kv, self._bounds, self._rows = batch, kv, bounds, rows
        self._tables = batch.block_table.unbind()

    def lay_out(self) -> None:
        """Nothing to do: the kernel finds its rows on the GPU."""

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.attend_into(out, query, layer, window, scale, cap, sinks)
        return out

    def attend_into(
        self,
        out: Tensor,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None,
        sinks: Tensor | None,
    ) -> None:
        batch, kv = self._batch, self._kv
        positions, heads, dim = query.shape
        table, place = self._tables[kv.groups.group[layer]], kv.groups.place[layer]
        is_small = query.element_size() < FLOAT_BYTES
        group = heads // kv.kv_heads
        pairs = max(PAIRS if is_small else 32, triton.next_power_of_2(group))
        tile = pairs // group
        tiles[(kv.kv_heads, positions // tile + self._rows)](
            query,
            kv.content,
            table,
            batch.context,
            batch.row_start,
            out,
            self._bounds,
            query if sinks is None else sinks,
            scale,
            window or 0,
            query.stride(0),
            table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * place,
            kv.content.stride(2),
            HEADS=heads,
            KV_HEADS=kv.kv_heads,
            TILE=tile,
            PAIRS=pairs,
            DIM=dim,
            WIDTH=max(triton.next_power_of_2(dim), LEAST),
            BLOCK=kv.block_size,
            CELLS=64 if is_small and positions <= FEW else 32,
            CAP=cap or 0.0,
            SINKS=sinks is not None,
            num_warps=4,
            num_stages=2 if is_small else 1,
            launch_pdl=True,
        )


class MixedAttention:
    """Rows of one position by one kernel, and longer rows by another, which is launched first.

    They run side by side, as far as there are multiprocessors for both.
    """

    def __init__(self, singles: DecodeAttention, others: TiledAttention | PrefillAttention) -> None:
        self._singles, self.others = singles, others

    def lay_out(self) -> None:
        self.others.lay_out()

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.others.attend_into(out, query, layer, window, scale, cap, sinks)
        self._singles.attend_into(out, query, layer, window, scale, cap, sinks)
        return out
