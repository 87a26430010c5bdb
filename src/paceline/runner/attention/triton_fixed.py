"""Attention with Triton kernels whose bits do not depend on other rows, chunks or parts."""

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from paceline.runner.attention.triton import (
    DecodeAttention,
    MixedAttention,
    TiledAttention,
    context_cut,
)
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
    FIXED,
    ContextCut,
    fixed_parts,
)
from paceline.runner.cuda.kernels.attention.fixed_attention import listed, tiled
from paceline.runner.cuda.kernels.attention.head_groups import (
    FEW_DIMS,
    FLOAT_BYTES,
    LEAST,
    MOST_SHARES,
    HeadGroups,
    warps,
)
from paceline.runner.kv_store import KVStore


class TritonFixed(Attention):
    """Decodes and longer rows have programs of their own shapes, which compute the same bits: see
    `fixed_attention`."""

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
        if batch.positions == batch.rows:
            return FixedDecode(batch, kv)
        bounds = torch.arange(2, dtype=torch.int32, device=kv.content.device) * batch.rows
        return FixedTiled(batch, kv, bounds, batch.rows)

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> GraphAttention:
        return FixedDecode(batch, kv)

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> GraphAttention:
        others = FixedTiled(batch, kv, bounds, longer)
        return MixedAttention(kv, FixedDecode(batch, kv, bounds), others)


def tile_of(seen: HeadGroups, is_small: bool) -> int:
    """Cells that are read at a time. The highest score of a tile scales it, so its size matters."""
    return 64 if is_small and not seen.is_wide else 32


def narrow(seen: HeadGroups, heads: int) -> HeadGroups:
    """Fewer heads for a program, if they share latent vectors: what a program keeps of a part is in
    shared memory before it is written."""
    if not seen.rest:
        return seen
    counts = [n for n in range(1, MOST_SHARES + 1) if heads % n == 0]
    return replace(seen, count=next((n for n in counts if heads <= n * LEAST), counts[-1]))


class FixedTiled(TiledAttention):
    """Rows of any length."""

    kernel = tiled

    def how(self, seen: HeadGroups, positions: int, is_small: bool) -> dict[str, Any]:
        how = super().how(seen, positions, is_small) | {"enable_fp_fusion": False}
        wide = {"num_warps": 8} if seen.dim > FEW_DIMS else {}
        return how | wide | {"CELLS": tile_of(seen, is_small)}


class FixedDecode(DecodeAttention):
    """Rows of one position each. Programs have parts with fixed bounds, more or fewer of them."""

    def _run(
        self,
        out: Tensor,
        query: Tensor,
        given: tuple[Tensor, Tensor, float, float],
        how: tuple[int, int | None, float, float | None, Tensor | None],
        sizes: dict[str, float],
    ) -> None:
        kv, is_bounded, (layer, window, scale, cap, sinks) = self._kv, self._bounds is not None, how
        rows, heads, dim = len(self._ended), *out.shape[1:]
        seen = narrow(HeadGroups.of(kv.heads[layer], heads), heads)
        programs = self._listed(window or 0, self._cut(seen))
        group = max(triton.next_power_of_2(heads // seen.count), LEAST)
        table, index = self._tables[kv.groups.group[layer]], kv.groups.index[layer]
        most = fixed_parts(table.shape[1] * kv.block_size)
        on: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
        listed[(seen.count, len(programs) + is_bounded)](  # one waits for the concurrent kernel
            query,
            kv.content,
            table,
            programs,
            out,
            torch.empty((rows, most, heads, dim), **on),
            torch.empty((rows, most, heads, 2), **on),
            self._ended,
            query if sinks is None else sinks,
            scale,
            window or 0,
            most,
            query.stride(0),
            table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * index,
            kv.content.stride(2),
            HEADS=heads,
            GROUP=group,
            BLOCK=kv.block_size,
            CELLS=tile_of(seen, query.element_size() < FLOAT_BYTES),
            FIELDS=FIELDS,
            BOUNDED=is_bounded,
            CAP=cap or 0.0,
            SINKS=sinks is not None,
            num_warps=warps(seen, group, query.dtype, is_new=False),
            num_stages=seen.stages(query.dtype),
            launch_pdl=True,
            enable_fp_fusion=False,
            **seen.constants,
        )

    def _cut(self, seen: HeadGroups) -> ContextCut:
        return ContextCut(context_cut(self._batch.rows, seen.count).spare, 1, FIXED)
