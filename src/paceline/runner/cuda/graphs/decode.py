"""Decode steps as CUDA graphs, one for each of several batch sizes."""

from bisect import bisect_left
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.runner.attention_backend import Attention, GraphAttention
from paceline.runner.batch import Batch
from paceline.runner.cuda.coordinates import LogitMasks
from paceline.runner.cuda.graphs.capture import Capture, CapturedGraphs, GraphMemory
from paceline.runner.cuda.kernels.columns import begin
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore


def sizes(most: int) -> list[int]:
    """Numbers of rows to capture, closer together where steps are short."""
    small = [1, 2, 4, *range(8, 129, 8), *range(144, 257, 16)]
    return [n for n in (*small, *range(288, most + 32, 32)) if n < most] + [most]


class DecodeGraphs:
    """Whole decode steps, from slots to sampled ids, which are written to the state too.

    Every graph reads its rows from `slot` and writes to `ids` or `logits`. Steps with masks have
    two: one that writes `logits`, and one that samples from them when the masks are there.
    """

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Attention,
        state: CudaState,
        memory: GraphMemory | None,
        masks: LogitMasks | None = None,
    ) -> None:
        self._model, self._kv, self._attention, self._state = model, kv, attention, state
        rows, device = state.padding_slot, kv.content.device
        column: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self.slot = torch.full((rows,), state.padding_slot, **column)
        self.ids = torch.zeros(rows, **column)
        self.logits = torch.zeros((rows, model.config.vocab), dtype=model.dtype, device=device)
        self.context = torch.ones(rows, **column)
        self._table = torch.zeros((len(kv.groups), rows, state.table.shape[2]), **column)
        self._row_start = torch.arange(rows + 1, **column)
        self._sizes = sizes(rows)
        self._held: dict[int, GraphAttention] = {}
        self._steps = {
            (samples, is_adapted): CapturedGraphs(
                partial(self._step, samples=samples, is_adapted=is_adapted), memory
            )
            for is_adapted in state.kinds
            for samples in (False, True)
        }
        self.masks, self._masked = masks, CapturedGraphs(self._sample_masked, memory)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each graph."""
        return tuple(self._sizes)

    def size(self, rows: int) -> int:
        return self._sizes[bisect_left(self._sizes, rows)]

    def captures(self) -> list[Capture]:
        """Every size, largest first, so that the smaller ones fit into its memory."""
        sizes = self._sizes[::-1]
        # Capturing runs the work once, so a rank without masks does what rank 0 does with its own.
        is_masked = self.masks is not None or self._model.group is not None
        kinds = [*self._steps.values(), *([self._masked] if is_masked else [])]
        return [partial(self._capture, n, graphs) for graphs in kinds for n in sizes]

    def replay(self, rows: int, contexts: I32, samples: bool, is_adapted: bool = False) -> None:
        """Run the step of `slot[:rows]`. It writes `ids[:rows]`, or `logits[:rows]` if it does not
        sample; the next replay overwrites them."""
        steps = self._steps[samples, is_adapted]
        if rows not in steps:
            self._capture(rows, steps)
        self._held[rows].refresh(contexts)
        steps.replay(rows)

    def sample(self, rows: int) -> None:
        """Sample by temperature from `logits[:rows]` and their masks; it writes `ids[:rows]`."""
        self._masked.replay(rows)

    def _capture(self, rows: int, graphs: CapturedGraphs) -> None:
        """Capture with padding rows: a capture runs the step, which must not advance a sequence."""
        kept = self.slot.clone()
        self.slot.fill_(self._state.padding_slot)
        try:
            graphs.prepare(rows)
        finally:
            self.slot.copy_(kept)

    def _step(self, rows: int, samples: bool, is_adapted: bool) -> None:
        state, slot, context = self._state, self.slot[:rows], self.context[:rows]
        columns = state.tokens, state.table, state.position
        table = self._table[:, :rows]
        tokens, position, cells = begin(columns, slot, context, table, self._kv)
        batch = Batch(
            tokens=tokens,
            position=position,
            row_start=self._row_start[: rows + 1],
            context=context,
            block_table=table,
            write_cell=cells,
            sample_at=self._row_start[:rows],
            adapters=state.adapters_of(slot) if is_adapted else None,
            coordinates=state.coordinates(slot, position),
            states=state.states_of(slot, longer=0),
        )
        if rows not in self._held:
            self._held[rows] = self._attention.prepare_graph(
                batch, self._kv, self._model.config.heads
            )
        held = self._held[rows]
        held.lay_out()
        hidden = self._model.forward(batch, cells, self._kv, held)
        logits = self._model.logits(hidden)
        if samples:
            self._choose(logits)
        else:
            self.logits[:rows, : logits.shape[1]].copy_(logits)  # some ranks have none

    def _sample_masked(self, rows: int) -> None:
        if self.masks is not None:
            self.masks.apply(self.logits[:rows])
        self._choose(self.logits[:rows])

    def _choose(self, logits: Tensor) -> None:
        rows = len(logits)
        slot, context, ids = self.slot[:rows], self.context[:rows], self.ids[:rows]
        self._state.choose(logits, slot, context, ids)
