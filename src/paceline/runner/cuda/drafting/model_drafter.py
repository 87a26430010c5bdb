"""Drafts on a GPU by a model with KV of its own, in the same blocks as that of the main model."""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.plan import Pairs, Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import GraphAttention
from paceline.runner.batch import Batch
from paceline.runner.cuda.graphs.drafts import ROWS
from paceline.runner.cuda.kernels.columns import locate
from paceline.runner.cuda.kernels.sampling import choose
from paceline.runner.cuda.residents import BlockCopies
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.proposer import Drafter, DraftingFor, DraftInput, Drafts


@dataclass(frozen=True, slots=True, eq=False)
class DraftBuffers:
    """Memory that all calls use, as CUDA graphs need it."""

    context: Tensor  # [rows]
    table: Tensor  # [1, rows, blocks]; drafters need one group that keeps every position
    row_start: Tensor  # [rows + 1]
    latest: Tensor  # [rows]; ids
    cold: Tensor  # [slots]; temperatures of 0

    @staticmethod
    def of(runner: DraftingFor) -> "DraftBuffers":
        table = runner.columns.table
        slots = table.shape[1]
        column: dict[str, Any] = {"dtype": torch.int32, "device": table.device}
        return DraftBuffers(
            context=torch.ones(slots, **column),
            table=torch.zeros_like(table),
            row_start=torch.arange(slots + 1, **column),
            latest=torch.zeros(slots, **column),
            cold=torch.zeros(slots, dtype=torch.float32, device=table.device),
        )


class CudaModelDrafter(Drafter):
    """Drafts the likeliest tokens, in one pass for each draft.

    Every step of the runner also writes the KV of the drafter, so its store has right KV wherever
    the runner's store has. Rows that have no draft in a pass, and rows that fill up a batch,
    belong to the padding slot.
    """

    on_device = True
    reads_tokens = False
    behind = 1  # how far before the known tokens' end the position of the first pass is

    def __init__(self, config: SpeculationConfig, heads: int) -> None:
        """With so many heads of queries."""
        super().__init__(config)
        self._heads = heads
        self._attention: Any = None  # a backend, from `accompany` on
        self._held: dict[int, GraphAttention] = {}
        self._copies_after: Pairs = ()  # that the latest plan lists behind its rows

    def attach(self, runner: DraftingFor) -> None:
        self.runner, self._buffers = runner, DraftBuffers.of(runner)
        slots = runner.columns.table.shape[1] - 1
        self._sizes = [*(rows for rows in ROWS if rows < slots), slots]
        self.kv, *others = self.stores(runner.columns.table.device)
        self._stores = [self.kv, *others]
        assert len(self._stores) == self.store_count, "memory is set aside for each store"
        self._held = {}
        self.reserve_host(0)

    @classmethod
    def bytes_of(cls, shape: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype) -> int:
        """Bytes of a position in its memory by blocks, with weights and KV of these types."""
        return shape.layers * shape.cell.values * kv_dtype.itemsize

    @abstractmethod
    def stores(self, device: torch.device) -> list[KVStore]:
        """Its memory by blocks. The first one is for keys and values."""

    @abstractmethod
    def advance(
        self, tokens: Tensor, batch: Batch, attention: Any, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute one position of each row. Return logits, and hidden states for the next pass; in
        the first one there are none."""

    def token_ids(self, ids: Tensor) -> Tensor:
        """Token ids of the columns of logits."""
        return ids

    def accompany(self, model: Any, attention: Any) -> tuple[Any, Any]:
        if not attention.support.mixed_graphs:
            proposer = self.config.proposer
            raise ConfigError(f"proposer {proposer!r} needs attention 'triton' on a GPU: set it")
        self._attention = attention
        return model, attention

    def reserve_host(self, blocks: int) -> None:
        self._moves = [BlockCopies(store, blocks) for store in self._stores]

    def follow(self, plan: Plan) -> None:
        for moves in self._moves:
            moves.copy(self._copies_after)  # those of the plan before
            moves.carry_out(plan)
        self._copies_after = plan.states.block_copies

    def captures(self) -> list[Callable[[], None]]:
        return [partial(self._rehearse, rows) for rows in reversed(self._sizes)]

    def _rehearse(self, rows: int) -> None:
        """Draft for rows of padding."""
        tokens = self.runner.columns.tokens
        none = torch.zeros(rows, dtype=torch.int32, device=tokens.device)
        slot = none + (len(tokens) - 1)
        self.draft(DraftInput(slot, tokens[:0], none + 1, none, 2))

    @torch.inference_mode()
    def draft(self, rows: DraftInput) -> Drafts:
        columns, count = self.runner.columns, len(rows.slot)
        size, padding = self._sizes[bisect_left(self._sizes, count)], len(columns.tokens) - 1
        slot, known, number = (
            F.pad(column, (0, size - count), value=value)
            for column, value in ((rows.slot, padding), (rows.known, 1), (rows.number, 0))
        )
        found = torch.empty((size, rows.most), dtype=torch.int64, device=slot.device)
        latest, hidden = self._buffers.latest[:size], None
        latest.copy_(columns.tokens[slot.long(), (known - 1).clamp(min=0).long()])
        for ahead in range(rows.most):
            is_drafted = number > ahead
            owner = torch.where(is_drafted, slot, padding)
            at = torch.where(is_drafted, known + (ahead - self.behind), 0)
            batch, held = self._batch(owner, at)
            logits, hidden = self.advance(latest.clone(), batch, held, hidden)
            choose(logits, self._buffers.cold, columns.key, owner, batch.context, latest)
            latest.copy_(self.token_ids(latest.clamp(min=0)))
            found[:, ahead] = torch.where(is_drafted, latest, -1)
        return Drafts(found[:count])

    def _batch(self, owner: Tensor, at: Tensor) -> tuple[Batch, GraphAttention]:
        """Rows of one position each, and attention over them."""
        columns, buffers, rows = self.runner.columns, self._buffers, len(owner)
        tokens, cells = locate(columns.tokens, columns.table, owner, at, self.kv)
        context, table = buffers.context[:rows], buffers.table[:, :rows]
        torch.add(at, 1, out=context)
        torch.index_select(columns.table[0], 0, owner, out=table[0])
        starts = buffers.row_start[: rows + 1]
        batch = Batch(tokens, at, starts, context, table, cells, starts[:rows])
        if rows not in self._held:
            self._held[rows] = self._attention.prepare_graph(batch, self.kv, self._heads)
        self._held[rows].lay_out()
        return batch, self._held[rows]
