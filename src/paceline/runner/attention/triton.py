"""Attention with Triton kernels: decodes split contexts into parts, longer rows use tiles."""

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from paceline.runner.attention_backend import (
    Attention,
    AttentionSupport,
    GraphAttention,
    Prepared,
    Queries,
)
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.attention.context_parts import (
    FIELDS,
    JOINED,
    ContextCut,
    PartList,
)
from paceline.runner.cuda.kernels.attention.decode_attention import decode
from paceline.runner.cuda.kernels.attention.head_groups import (
    FLOAT_BYTES,
    LEAST,
    MOST_SHARES,
    HeadGroups,
    room_for,
    warps,
)
from paceline.runner.cuda.kernels.attention.heads import HeadRotation
from paceline.runner.cuda.kernels.attention.prefill_attention import PrefillAttention
from paceline.runner.cuda.kernels.attention.tiled_attention import tiles
from paceline.runner.kv_store import KVStore

BUSY = 768  # parts of contexts that keep a large GPU busy, even with different lengths
PAIRS = 64  # (position, head) pairs in a tile of queries
FEW_CONTEXTS = 64  # number of contexts below which parts of a single tile are faster
AT_ONCE = 256  # programs that run at once on a large GPU, if they also rotate queries
FEW = 2048  # most positions for which longer tiles of keys are faster
ATTENDING = {
    "NEW": False,  # keys are in the store
    "NORMED": False,
    "ROTATES_FIRST": False,
    "VALUE_NORMED": False,
    "BY_ROW": False,
    "GROWTH": 0.0,
    "GROWTH_LENGTH": 1,
    "GROWTH_OFFSET": 0,
}


def context_cut(rows: int, kv_heads: int) -> ContextCut:
    """The fastest split of contexts for a number of rows on an H200, for mixed lengths. Each key
    head of a row has a context."""
    contexts = rows * kv_heads
    if contexts < FEW_CONTEXTS:
        return ContextCut(max(AT_ONCE // kv_heads - rows, 1), least=1, joined=16)
    busy = BUSY if contexts >= BUSY else BUSY // 2
    return ContextCut(-(-busy // kv_heads), least=2)


class Triton(Attention):
    """Reads block tables on the GPU, so that the host can launch a step without knowing them.

    All step-dependent data is in the batch's tensors, which kernels in a graph read at each
    replay.
    """

    support = AttentionSupport(
        device="cuda",
        mixed_graphs=True,
        chunks=True,
        latents=True,
        mixed_heads=True,
        whole_images=True,
    )

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        if batch.positions == batch.rows:
            return DecodeAttention(batch, kv, joined=JOINED)
        bounds = torch.arange(2, dtype=torch.int32, device=kv.content.device) * batch.rows
        return TiledAttention(batch, kv, bounds, batch.rows)

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> "FusedDecodeAttention":
        """Prepare decodes for a graph. Every replay reads the tensors of the batch."""
        return FusedDecodeAttention(batch, kv)

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> "MixedAttention":
        """Prepare rows of any length for a graph: rows of one position up to `bounds[0]`, and at
        most `longer` others up to `bounds[1]`."""
        others: TiledAttention | PrefillAttention = TiledAttention(batch, kv, bounds, longer)
        if PrefillAttention.can(kv, queries, batch.positions):
            others = PrefillAttention(batch, kv, bounds, longer, queries.heads)
        return MixedAttention(kv, DecodeAttention(batch, kv, bounds), others)


class DecodeAttention(GraphAttention):
    """Rows of one position each, whose contexts are split into parts.

    One program reads a part for one key head. Of the programs of one context, the last to end
    combines the results.
    """

    def __init__(
        self,
        batch: Batch,
        kv: KVStore,
        bounds: Tensor | None = None,
        joined: int | None = None,
    ) -> None:
        """For all rows, or those up to `bounds[0]`. Without a graph, one kernel serves any number
        of rows if the number of parts that it joins at a time is given."""
        self._batch, self._kv, self._bounds, self._joined = batch, kv, bounds, joined
        self._tables = batch.block_table.unbind()
        self._lists: dict[tuple[int, ContextCut], PartList] = {}  # by window, 0: none, and cut
        # Ended programs of each row and head; the one that combines resets the count.
        most = max(MOST_SHARES if one.is_latent else one.kv_heads for one in kv.heads)
        self._ended = torch.zeros((batch.rows, most), dtype=torch.int32, device=kv.content.device)

    def lay_out(self) -> None:
        for listed in self._lists.values():
            listed.lay_out()

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = room_for(query, self._kv.heads[layer])
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
        self._run(out, query, (query, query, 0.0, 0.0), how, ATTENDING)

    def _run(
        self,
        out: Tensor,
        query: Tensor,
        given: tuple[Tensor, Tensor, float, float],
        how: tuple[int, int | None, float, float | None, Tensor | None],
        sizes: dict[str, float],
    ) -> None:
        kv, is_bounded, (layer, window, scale, cap, sinks) = self._kv, self._bounds is not None, how
        heads, dim = out.shape[1:]
        seen = HeadGroups.of(kv.heads[layer], heads)
        cut = self._cut(seen)
        listed = self._listed(window or 0, cut)
        group = max(triton.next_power_of_2(heads // seen.count), LEAST)
        table, index = self._tables[kv.groups.group[layer]], kv.groups.index[layer]
        on: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
        parts = torch.empty((len(listed), heads, dim), **on)
        peaks = torch.empty((len(listed), heads), **on)
        programs = len(listed) + is_bounded  # one waits for the concurrent kernel
        decode[(seen.count, programs)](
            query,
            kv.content,
            table,
            listed,
            out,
            parts,
            peaks,
            self._ended,
            *given,
            query if sinks is None else sinks,
            scale,
            window or 0,
            query.stride(0),
            table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * index,
            kv.content.stride(2),
            HEADS=heads,
            GROUP=group,
            BLOCK=kv.block_size,
            CELLS=cut.tile,
            FIELDS=FIELDS,
            PARTS=cut.joined,
            BOUNDED=is_bounded,
            CAP=cap or 0.0,
            SINKS=sinks is not None,
            num_warps=warps(seen, group, query.dtype, is_new=bool(sizes["NEW"])),
            num_stages=seen.stages(query.dtype),
            launch_pdl=True,
            **seen.constants,
            **sizes,
        )

    def _cut(self, seen: HeadGroups) -> ContextCut:
        cut = context_cut(self._batch.rows, seen.count)
        tile = min(cut.tile, seen.cells) if seen.is_wide else cut.tile
        return replace(cut, tile=tile, joined=self._joined or cut.joined)

    def _listed(self, window: int, cut: ContextCut) -> Tensor:
        """The list of parts for layers with this window, which `lay_out` writes from the first use
        on; a graph is captured after a first run."""
        if (window, cut) not in self._lists:
            self._lists[window, cut] = PartList(self._batch, self._bounds, window, cut)
            self._lists[window, cut].lay_out()
        return self._lists[window, cut].parts


class FusedDecodeAttention(DecodeAttention):
    """Rows of one position each, of different sequences. With few rows, the kernel also rotates
    queries and keys and writes them to the store."""

    rotates = True

    def attend_new(
        self,
        qkv: Tensor,
        rotation: HeadRotation,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """`rotate_and_store` and attention in one kernel, for few rows.

        `qkv` is [rows, heads + 2 * kv_heads, head_dim]; its rows need not be adjacent. The kernel
        starts after the batch is written, and before the linear that computes `qkv` has ended.
        """
        rows, total, dim = qkv.shape
        heads = total - 2 * self._kv.heads[layer].kv_heads
        out = torch.empty((rows, heads, dim), dtype=qkv.dtype, device=qkv.device)
        factor = qkv if rotation.factor is None else rotation.factor
        given = rotation.cos_sin, factor, rotation.floor, rotation.value_floor or 0.0
        sizes = {"NEW": True, **rotation.constants}
        self._run(out, qkv, given, (layer, window, scale, cap, sinks), sizes)
        return out


class TiledAttention(GraphAttention):
    """Rows of any length, cut into tiles of positions and heads that share keys.

        row_start   0           5   6               11     tiles of 4
        tile        0       1   2   3       4       .      row r has its first at start // 4 + r

    If a row needs fewer tiles than it has room for, its last one is empty. So the number of
    programs depends only on the numbers of positions and rows, not on the lengths of rows.
    """

    kernel: Any = tiles
    pairs = PAIRS  # in a tile of queries of 16 bits

    def __init__(self, batch: Batch, kv: KVStore, bounds: Tensor, rows: int) -> None:
        self._batch, self._kv, self._bounds, self._rows = batch, kv, bounds, rows
        self._tables = batch.block_table.unbind()

    def lay_out(self) -> None:
        """Do nothing: the kernel finds its rows on the GPU."""

    def how(self, seen: HeadGroups, positions: int, is_small: bool) -> dict[str, Any]:
        """How the kernel computes so many positions."""
        return {
            "CELLS": 64 if is_small and positions <= FEW and not seen.is_wide else 32,
            "num_warps": 8 if seen.is_wide else 4,
            "num_stages": 2 if is_small else 1,
        }

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = room_for(query, self._kv.heads[layer])
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
        positions, heads, _ = query.shape
        seen = HeadGroups.of(kv.heads[layer], heads)
        table, index = self._tables[kv.groups.group[layer]], kv.groups.index[layer]
        is_small, group = query.element_size() < FLOAT_BYTES, heads // seen.count
        pairs = max(self.pairs if is_small else 32, triton.next_power_of_2(group))
        tile, ends = pairs // group, batch.ends_for(window)
        self.kernel[(seen.count, positions // tile + self._rows)](
            query,
            kv.content,
            table,
            batch.context,
            batch.row_start,
            out,
            self._bounds,
            query if ends is None else ends,
            query if sinks is None else sinks,
            scale,
            window or 0,
            query.stride(0),
            table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * index,
            kv.content.stride(2),
            HEADS=heads,
            TILE=tile,
            PAIRS=pairs,
            BLOCK=kv.block_size,
            CAP=cap or 0.0,
            SINKS=sinks is not None,
            ENDS=ends is not None,
            launch_pdl=True,
            **self.how(seen, positions, is_small),
            **seen.constants,
        )


class MixedAttention(GraphAttention):
    """One kernel for rows of one position and another, launched first, for longer rows.

    They run concurrently as far as there are free multiprocessors.
    """

    def __init__(
        self, kv: KVStore, singles: DecodeAttention, others: TiledAttention | PrefillAttention
    ) -> None:
        self._kv, self._singles, self.others = kv, singles, others

    def lay_out(self) -> None:
        self._singles.lay_out()
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
        out = room_for(query, self._kv.heads[layer])
        self.others.attend_into(out, query, layer, window, scale, cap, sinks)
        self._singles.attend_into(out, query, layer, window, scale, cap, sinks)
        return out
