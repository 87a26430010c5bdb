"""Attention with a Triton kernel in which a position reads its context in the same order always."""

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
from paceline.runner.cuda.kernels.attention.head_groups import FLOAT_BYTES, HeadGroups, room_for
from paceline.runner.cuda.kernels.attention.tiled_attention import tiles
from paceline.runner.kv_store import KVStore

PAIRS = {True: 64, False: 32}  # (position, head) pairs in a tile of queries, by 16-bit numbers


class TritonFixed(Attention):
    """One kernel, with tiles of one size, for rows of any length. It reads a context in tiles that
    begin at fixed positions, one after the other: the parts of a long context are not computed at
    the same time."""

    support = AttentionSupport(
        device="cuda",
        mixed_graphs=True,
        chunks=True,
        latents=True,
        mixed_heads=True,
        whole_images=True,
        is_invariant=True,
    )

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        return FixedAttention(batch, kv)

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> GraphAttention:
        return FixedAttention(batch, kv)

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> GraphAttention:
        return FixedAttention(batch, kv, bounds)


class FixedAttention(GraphAttention):
    """All rows, or those up to `bounds[1]`, cut into tiles of queries: see `TiledAttention`."""

    def __init__(self, batch: Batch, kv: KVStore, bounds: Tensor | None = None) -> None:
        self._batch, self._kv, self._given = batch, kv, bounds
        self._tables = batch.block_table.unbind()
        self._bounds = torch.arange(2, dtype=torch.int32, device=kv.content.device) * batch.rows

    def lay_out(self) -> None:
        """Take over the number of rows; part of the graph."""
        if self._given is not None:
            self._bounds[1:].copy_(self._given[1:2])

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        batch, kv = self._batch, self._kv
        out = room_for(query, kv.heads[layer])
        positions, heads, _ = query.shape
        seen = HeadGroups.of(kv.heads[layer], heads)
        table, index = self._tables[kv.groups.group[layer]], kv.groups.index[layer]
        is_small = query.element_size() < FLOAT_BYTES
        group = heads // seen.count
        pairs = max(PAIRS[is_small], triton.next_power_of_2(group))
        tile, ends = pairs // group, batch.ends_for(window)
        how: dict[str, Any] = {
            "CELLS": 64 if is_small and not seen.is_wide else 32,
            "num_warps": 8 if seen.is_wide else 4,
            "num_stages": 2 if is_small else 1,
        }
        tiles[(seen.count, positions // tile + batch.rows)](
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
            MASKED=True,
            launch_pdl=True,
            **how,
            **seen.constants,
        )
        return out
