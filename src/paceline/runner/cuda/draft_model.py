"""A smaller model on a GPU with the same vocabulary, which drafts token by token."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.plan import Plan
from paceline.core.speculation_config import SpeculationConfig
from paceline.runner.batch import Batch
from paceline.runner.cuda.block_copies import BlockCopies
from paceline.runner.cuda.graphs.decode import Capturable, DecodeGraphAttention
from paceline.runner.cuda.graphs.drafts import ROWS
from paceline.runner.cuda.kernels.columns import place
from paceline.runner.cuda.kernels.sampling import choose
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.paired_model import PairedAttention, PairedModel
from paceline.runner.kv_store import KVStore
from paceline.runner.model_drafter import check_vocab
from paceline.runner.proposer import Drafter, DraftingFor, DraftInput, Drafts


@dataclass(frozen=True, slots=True, eq=False)
class DraftBuffers:
    """Memory that all calls use, as CUDA graphs need it."""

    context: Tensor  # [rows]
    table: Tensor  # [rows, blocks]
    row_start: Tensor  # [rows + 1]
    latest: Tensor  # [rows]; ids
    cold: Tensor  # [slots]; temperatures of 0

    @staticmethod
    def of(runner: DraftingFor) -> "DraftBuffers":
        table = runner.columns.table
        slots, column = len(table), {"dtype": torch.int32, "device": table.device}
        return DraftBuffers(
            context=torch.ones(slots, **column),
            table=torch.zeros_like(table),
            row_start=torch.arange(slots + 1, **column),
            latest=torch.zeros(slots, **column),
            cold=torch.zeros(slots, dtype=torch.float32, device=table.device),
        )


class CudaDraftModel(Drafter):
    """Drafts the likeliest tokens, in one pass of the model for each place.

    Every step of the runner computes its positions with both models, so the store of the draft
    model has right KV wherever the runner's store has. Rows that have no draft in a place, and
    rows that fill up a batch, belong to the padding slot.
    """

    on_device = True
    reads_tokens = False

    def __init__(self, config: SpeculationConfig, model: CudaModel, dtype: torch.dtype) -> None:
        """KV is of this type."""
        super().__init__(config)
        self._model, self._dtype = model, dtype
        shape = model.config
        self.cell_bytes = shape.layers * 2 * shape.kv_heads * shape.head_dim * dtype.itemsize
        self._runner: DraftingFor | None = None
        self._attention: Capturable | None = None
        self._held: dict[int, DecodeGraphAttention] = {}

    def attach(self, runner: DraftingFor) -> None:
        check_vocab(self._model.config, runner.model.config)
        device = runner.columns.table.device
        blocks = runner.blocks, runner.block_size
        self._kv = KVStore(self._model.config, *blocks, self._dtype, device)
        self._moves = BlockCopies(self._kv, 0)
        self._runner, self._buffers = runner, DraftBuffers.of(runner)
        slots = len(runner.columns.table) - 1
        self._sizes = [*(rows for rows in ROWS if rows < slots), slots]
        self._held = {}

    def accompany(self, model: Any, attention: Any) -> tuple[Any, Any]:
        self._attention = attention
        pair = PairedModel(model, self._model, self._kv)
        return pair, PairedAttention(attention, self._model, self._kv)

    def reserve_host(self, blocks: int) -> None:
        self._moves = BlockCopies(self._kv, blocks)

    def follow(self, plan: Plan) -> None:
        self._moves.carry_out(plan)

    def captures(self) -> list[Any]:
        return [partial(self._rehearse, rows) for rows in reversed(self._sizes)]

    def _rehearse(self, rows: int) -> None:
        """Draft for rows of padding."""
        assert self._runner is not None
        tokens = self._runner.columns.tokens
        none = torch.zeros(rows, dtype=torch.int32, device=tokens.device)
        slot = none + (len(tokens) - 1)
        self.draft(DraftInput(slot, tokens[:0], none + 1, none, 1))

    @torch.inference_mode()
    def draft(self, rows: DraftInput) -> Drafts:
        assert self._runner is not None
        columns, count = self._runner.columns, len(rows.slot)
        size, padding = self._sizes[bisect_left(self._sizes, count)], len(columns.tokens) - 1
        own, known, number = (
            F.pad(column, (0, size - count), value=value)
            for column, value in ((rows.slot, padding), (rows.known, 1), (rows.number, 0))
        )
        found = torch.empty((size, rows.most), dtype=torch.int64, device=own.device)
        latest = self._buffers.latest[:size]
        for ahead in range(rows.most):
            is_drafted = number > ahead
            owner = torch.where(is_drafted, own, padding)
            at = torch.where(is_drafted, known - 1 + ahead, 0)
            batch = self._batch(owner, at, latest if ahead else None)
            logits = self._logits(batch)
            choose(logits, self._buffers.cold, columns.key, owner, batch.context, latest)
            found[:, ahead] = torch.where(is_drafted, latest, -1)
        return Drafts(found[:count])

    def _batch(self, owner: Tensor, at: Tensor, latest: Tensor | None) -> Batch:
        """Rows of one position each: the last known token of a slot, or its latest draft."""
        assert self._runner is not None
        columns, buffers, rows = self._runner.columns, self._buffers, len(owner)
        tokens, cells = place(columns.tokens, columns.table, owner, at, self._kv)
        if latest is not None:
            tokens = latest.clamp(min=0)
        context, table = buffers.context[:rows], buffers.table[:rows]
        torch.add(at, 1, out=context)
        torch.index_select(columns.table, 0, owner, out=table)
        starts = buffers.row_start[: rows + 1]
        return Batch(tokens, at, starts, context, table, cells, starts[:rows])

    def _logits(self, batch: Batch) -> Tensor:
        rows = batch.rows
        if rows not in self._held:
            assert self._attention is not None
            heads = self._model.config.heads
            self._held[rows] = self._attention.prepare_graph(batch, self._kv, heads)
        held = self._held[rows]
        held.lay_out()
        hidden = self._model.forward(batch, batch.write_cell, self._kv, held)
        return self._model.logits(hidden)
