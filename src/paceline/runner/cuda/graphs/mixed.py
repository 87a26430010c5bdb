"""Steps with rows of any length as CUDA graphs, one for each of several numbers of positions."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.plan import Plan
from paceline.runner.attention.backend import GraphAttention, Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.graphs.capture import CapturedGraphs, GraphMemory
from paceline.runner.cuda.graphs.decode import sizes
from paceline.runner.cuda.kernels.columns import settle, spread
from paceline.runner.cuda.kernels.sampling import choose
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore

SHARE = 64  # positions for each row of more than one: a graph has so many rows at most
LEAST_ROWS = 8
BOUNDS, STARTS, CONTEXTS, SLOTS, SAMPLE_AT, SAMPLE_SLOTS, SAMPLE_CONTEXTS = range(7)


@runtime_checkable
class MixedCapturable(Protocol):
    """An attention backend whose rows of any length can be part of a CUDA graph."""

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> GraphAttention:
        """Prepare rows of one position up to `bounds[0]`, then `longer` rows up to `bounds[1]`."""
        ...


def lengths(most: int) -> list[int]:
    """Numbers of positions to capture, each at most an eighth above the next smaller one."""
    steps = ((64, 512), (128, 1024), (256, 2048), (512, 4096), (1024, most))
    found, size = [], 0
    for step, end in steps:
        while size < min(end, most):
            size += step
            found.append(min(size, most))
    return found


class MixedGraphs:
    """Two graphs for a step: from slots to hidden states of the rows that sample, and from these to
    sampled ids, which are written to the state too.

        columns    the rows of the step, sent by the host
        rows       | of one position ...     | longer ones ... | padding ...
        positions  | one each                | theirs          | padding, up to the graph's size

    All graphs read and write the same memory, whatever their size.
    """

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: MixedCapturable,
        state: CudaState,
        most: int,
        memory: GraphMemory,
    ) -> None:
        """Graphs of at most `most` positions."""
        self._model, self._kv, self._attention, self._state = model, kv, attention, state
        self._rows = state.padding_slot
        device = kv.content.device
        column: dict[str, Any] = {"dtype": torch.int32, "device": device}
        width = -(-(self._rows + 1) // 4) * 4
        self._blank = np.zeros((7, width), np.int32)
        self._blank[[SLOTS, SAMPLE_SLOTS]] = state.padding_slot
        self._columns = torch.from_numpy(self._blank).to(device)
        self._table = torch.zeros((self._rows, state.table.shape[1]), **column)
        self._hidden = torch.zeros(
            (self._rows, model.config.width), dtype=model.dtype, device=device
        )
        self.ids = torch.zeros(self._rows, **column)
        self._lengths, self._sizes = lengths(most), sizes(self._rows)
        self._held: dict[int, GraphAttention] = {}
        self._forward = CapturedGraphs(self._positions, memory)
        self._sample = CapturedGraphs(self._samples, memory)

    def capture(self) -> Iterator[int]:
        """Capture every size, largest first, so that the smaller ones fit into its memory."""
        for positions in reversed(self._lengths):
            self._forward.graph(positions)
            yield positions
        for rows in reversed(self._sizes):
            self._sample.graph(rows)
            yield rows

    @property
    def most(self) -> int:
        """Positions of the largest graph."""
        return self._lengths[-1]

    def rehearse(self) -> None:
        """Run the largest step with the current columns, without a graph."""
        self._positions(self.most)
        self._samples(self._rows)

    def size(self, plan: Plan) -> int | None:
        """The size of the smallest graph that a step fits into, or None."""
        longer = int((plan.rows.count > 1).sum())
        needed = max(plan.total, longer * SHARE if longer > LEAST_ROWS else 0)
        return self._lengths[bisect_left(self._lengths, needed)] if needed <= self.most else None

    def forward(self, plan: Plan, size: int, order: Index, wanted: Index) -> None:
        """Compute the rows in this order. Rows of one position come first."""
        self._state.send_into(self._columns, self._columns_of(plan, order, wanted))
        self._forward.replay(size)

    def sample(self, rows: int) -> Tensor:
        """Return ids of so many rows. The next step overwrites them."""
        self._sample.replay(self._sizes[bisect_left(self._sizes, rows)])
        return self.ids[:rows]

    def wanted(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, slots and contexts of the rows that sample."""
        slot, context = self._columns[SAMPLE_SLOTS, :rows], self._columns[SAMPLE_CONTEXTS, :rows]
        return self._model.logits(self._hidden[:rows]), slot, context

    def _columns_of(self, plan: Plan, order: Index, wanted: Index) -> np.ndarray:
        rows, columns = plan.rows, self._blank.copy()
        count, number = rows.count[order], len(order)
        contexts: I32 = plan.start + rows.count
        ends = np.cumsum(count)
        columns[BOUNDS, :2] = (count == 1).sum(), number
        columns[STARTS, 1:] = ends[-1]
        columns[STARTS, 1 : number + 1] = ends
        columns[CONTEXTS, :number] = contexts[order]
        columns[SLOTS, :number] = rows.slot[order]
        columns[SAMPLE_AT, : len(wanted)] = ends[rows.samples[order]] - 1
        columns[SAMPLE_SLOTS, : len(wanted)] = rows.slot[wanted]
        columns[SAMPLE_CONTEXTS, : len(wanted)] = contexts[wanted]
        return columns

    # -- what is captured ---------------------------------------------------

    def _positions(self, positions: int) -> None:
        rows = min(self._rows, positions)
        state, columns = self._state, self._columns
        slot, starts, context = (columns[line] for line in (SLOTS, STARTS, CONTEXTS))
        starts, table = starts[: rows + 1], self._table[:rows]
        tokens, position, cells = spread(
            (state.tokens, state.table, state.position),
            (slot[:rows], starts, context[:rows]),
            table,
            positions,
            self._kv,
        )
        sample_at = columns[SAMPLE_AT, :rows]
        batch = Batch(tokens, position, starts, context[:rows], table, cells, sample_at)
        if positions not in self._held:
            longer = min(rows, max(positions // SHARE, LEAST_ROWS))
            queries = Queries(self._model.config.heads, self._model.dtype)
            held = self._attention.prepare_mixed_graph(
                batch, self._kv, columns[BOUNDS], longer, queries
            )
            self._held[positions] = held
        held = self._held[positions]
        held.lay_out()
        hidden = self._model.forward(batch, cells, self._kv, held, sample_at)
        self._hidden[:rows].copy_(hidden)

    def _samples(self, rows: int) -> None:
        state, ids = self._state, self.ids[:rows]
        logits, slot, context = self.wanted(rows)
        choose(logits, state.temperature, state.key, slot, context, ids)
        settle(state.tokens, state.position, slot, context, ids)
