"""Attention with FlashInfer: one call for decodes and one for longer rows."""

# The library has no type annotations.
# pyright: standard, reportMissingImports=false, reportCallIssue=false

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from paceline.core.arrays import I32
from paceline.runner.attention_backend import Attention, AttentionSupport, GraphAttention, Prepared
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.columns import flatten_table
from paceline.runner.cuda.staging import lengths
from paceline.runner.kv_store import KVStore
from paceline.runner.tensors import from_numpy

SCRATCH_BYTES = 256 << 20  # partial results of split contexts
PLANS = 4  # most steps in flight: a plan is copied to the GPU after the call returns
HEAD_DIMS = (64, 128, 256)


class Flashinfer(Attention):
    """Plans the work of programs on the host, once for all layers of a step.

    A plan is copied from pinned memory after the call returns. So there is a pinned buffer for each
    step in flight, used in turn.
    """

    support = AttentionSupport(
        device="cuda",
        windows=False,
        caps=False,
        sinks=False,
        head_dims=HEAD_DIMS,
        dtypes=(torch.bfloat16, torch.float16),
        plans_on_host=True,
        most_in_flight=PLANS,
    )

    def __init__(self) -> None:
        self._scratch: Tensor | None = None
        self._wrappers: list[dict[bool, Any]] = [{} for _ in range(PLANS)]
        self._next = 0

    def prepare(self, batch: Batch, kv: KVStore) -> "FlashinferStep":
        self._next = (self._next + 1) % PLANS
        return FlashinferStep(batch, kv, self.scratch(kv), self._wrappers[self._next])

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> "FlashinferDecodeGraph":
        """Prepare decodes for a graph; each replay reads the batch's tensors."""
        return FlashinferDecodeGraph(batch, kv, self.scratch(kv), heads)

    def scratch(self, kv: KVStore) -> Tensor:
        if self._scratch is None:
            device = kv.content.device
            self._scratch = torch.zeros(SCRATCH_BYTES, dtype=torch.uint8, device=device)
        return self._scratch


def keys_and_values(kv: KVStore, layer: int) -> tuple[Tensor, Tensor]:
    """Views of keys and values, [blocks, block_size, kv_heads, head_dim] each."""
    cells = kv.content[:, layer]
    return cells[:, :, : kv.kv_heads], cells[:, :, kv.kv_heads :]


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """Rows that one call computes, and the indices of their positions in the batch."""

    index: I32
    starts: I32  # [rows + 1], among the positions of the group
    contexts: I32
    at: slice | Tensor

    @staticmethod
    def of(index: I32, starts: I32, contexts: I32, device: torch.device) -> "RowGroup":
        counts = np.diff(starts)[index]
        group_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        first = starts[:-1][index]
        if bool((first - first[0] == group_starts[:-1]).all()):
            span = slice(int(first[0]), int(first[0] + group_starts[-1]))
            return RowGroup(index, group_starts, contexts[index], span)
        indices = np.repeat(first - group_starts[:-1], counts) + np.arange(group_starts[-1])
        return RowGroup(index, group_starts, contexts[index], from_numpy(indices).to(device))


class FlashinferStep(Prepared):
    """A step: one call for rows of one position and one for the others."""

    def __init__(
        self, batch: Batch, kv: KVStore, scratch: Tensor, wrappers: dict[bool, Any]
    ) -> None:
        self._batch, self._kv, self._scratch, self._wrappers = batch, kv, scratch, wrappers
        starts, contexts = lengths(batch)
        is_single = np.diff(starts) == 1
        device = kv.content.device
        self._groups = [
            RowGroup.of(np.flatnonzero(mine).astype(np.int32), starts, contexts, device)
            for mine in (is_single, ~is_single)
            if mine.any()
        ]
        self._planned: list[Any] = []

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        assert window is cap is sinks is None, "a model that this backend does not support"
        if not self._planned:
            self._planned = [self._plan(rows, query, scale) for rows in self._groups]
        store, calls = keys_and_values(self._kv, layer), self._planned
        if len(calls) == 1:
            return calls[0].run(query, store)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for rows, call in zip(self._groups, calls, strict=True):
            out[rows.at] = call.run(query[rows.at], store)
        return out

    def _plan(self, rows: RowGroup, query: Tensor, scale: float) -> Any:
        kv, batch = self._kv, self._batch
        is_single = len(rows.index) == int(rows.starts[-1])
        wrapper = self._wrappers.get(is_single)
        if wrapper is None:
            if is_single:
                wrapper = BatchDecodeWithPagedKVCacheWrapper(
                    self._scratch, "NHD", use_tensor_cores=True
                )
            else:
                wrapper = BatchPrefillWithPagedKVCacheWrapper(self._scratch, "NHD", backend="fa2")
            self._wrappers[is_single] = wrapper
        used = -(-rows.contexts // kv.block_size)
        ends = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)
        inside = np.arange(ends[-1]) - np.repeat(ends[:-1], used)
        entry = np.repeat(rows.index * batch.block_table.shape[2], used) + inside
        entries = from_numpy(entry.astype(np.int32)).to(kv.content.device, non_blocking=True)
        blocks = batch.block_table.int().flatten().index_select(0, entries)
        last = from_numpy((rows.contexts - 1) % kv.block_size + 1).int()
        table = from_numpy(ends), blocks, last
        shape = query.shape[1], kv.kv_heads, kv.head_dim, kv.block_size
        kinds: dict[str, Any] = {
            "q_data_type": query.dtype,
            "kv_data_type": kv.dtype,
            "sm_scale": scale,
        }
        if is_single:
            wrapper.plan(*table, *shape, **kinds)
        else:
            wrapper.plan(from_numpy(rows.starts), *table, *shape, causal=True, **kinds)
        return wrapper


class FlashinferDecodeGraph(GraphAttention):
    """Decodes of a fixed number of rows, captured once and planned before each replay.

    `lay_out` builds the tables on the GPU, inside the graph; `refresh` plans the work of programs
    on the host.
    """

    def __init__(self, batch: Batch, kv: KVStore, scratch: Tensor, heads: int) -> None:
        rows, device = batch.rows, kv.content.device
        self._batch, self._kv, self._heads = batch, kv, heads
        ends = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        blocks = torch.zeros(batch.block_table.numel(), dtype=torch.int32, device=device)
        last = torch.ones(rows, dtype=torch.int32, device=device)
        self._table = ends, blocks, last
        self._wrapper = BatchDecodeWithPagedKVCacheWrapper(
            scratch,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=ends,
            paged_kv_indices_buffer=blocks,
            paged_kv_last_page_len_buffer=last,
        )
        size = self._wrapper._int_workspace_buffer.numel()
        self._pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(PLANS)]
        self._next = 0
        self._queries = torch.arange(rows + 1, dtype=torch.int32)
        # The first plan selects the kernels; later ones only change their work.
        self._wrapper.plan(
            self._queries,
            blocks[:0],
            torch.ones(rows, dtype=torch.int32),
            heads,
            kv.kv_heads,
            kv.head_dim,
            kv.block_size,
            q_data_type=kv.dtype,
            kv_data_type=kv.dtype,
        )
        self.refresh(np.ones(rows, np.int32))

    def lay_out(self) -> None:
        """Write the tables of the kernels; part of the graph."""
        table, context = self._batch.block_table[0], self._batch.context
        flatten_table(table, context, *self._table, self._kv)

    def refresh(self, contexts: I32) -> None:
        """Plan the next step for contexts [rows], outside of the graph."""
        wrapper, kv = self._wrapper, self._kv
        self._next = (self._next + 1) % PLANS
        ends = np.zeros(len(contexts) + 1, np.int32)
        np.cumsum(-(-contexts // kv.block_size), out=ends[1:])
        # The wrapper's plan() loops over contexts in Python and copies the table.
        wrapper._plan_info = wrapper._cached_module.plan(
            wrapper._float_workspace_buffer,
            wrapper._int_workspace_buffer,
            self._pinned[self._next],
            self._queries,
            from_numpy(ends),
            from_numpy(contexts),
            len(contexts),
            len(contexts),
            self._heads,
            kv.kv_heads,
            kv.block_size,
            True,
            kv.head_dim,
            kv.head_dim,
            False,
            -1,
            -1,
            False,
            0,
        )

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        assert window is cap is sinks is None, "a model that this backend does not support"
        self._wrapper._sm_scale = scale
        return self._wrapper.run(query, keys_and_values(self._kv, layer))
