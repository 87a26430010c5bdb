"""Steps with rows of any length as CUDA graphs, one for each of several numbers of positions."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.plan import Plan
from paceline.runner.attention_backend import Attention, GraphAttention, Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.coordinates import LogitMasks
from paceline.runner.cuda.graphs.capture import Capture, CapturedGraphs, GraphMemory
from paceline.runner.cuda.graphs.decode import sizes
from paceline.runner.cuda.kernels.columns import spread
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore

LEAST_ROWS = 8
DRAFTED = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280)  # positions
BOUNDS, STARTS, CONTEXTS, SLOTS, DRAFTS, SAMPLE_AT, SAMPLE_SLOTS, SAMPLE_CONTEXTS = range(8)


def lengths(most: int) -> list[int]:
    """Numbers of positions to capture, each at most an eighth above the next smaller one."""
    steps = ((64, 512), (128, 1024), (256, 2048), (512, 4096), (1024, most))
    found: list[int] = []
    size = 0
    for step, end in steps:
        while size < min(end, most):
            size += step
            found.append(min(size, most))
    return found


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of the graphs."""

    lengths: tuple[int, ...]  # positions of each graph
    share: int  # positions for each row of more than one
    lines: int  # hidden states that come out of the largest
    is_drafted: bool = False  # rows may have drafts

    @staticmethod
    def of_prompts(most: int, rows: int) -> "Extent":
        """Few rows of a graph are long, and each row samples once at most."""
        return Extent(tuple(lengths(most)), 64, rows)

    @staticmethod
    def of_drafts(most: int) -> "Extent":
        """Every row may have a draft, and every position a line."""
        found = tuple(length for length in DRAFTED if length < most)
        largest = min(most, DRAFTED[-1])
        return Extent((*found, largest)[: len(DRAFTED)], 2, largest, is_drafted=True)

    def fitting(self, positions: int, longer: int, lines: int) -> int | None:
        """The length of the smallest graph with room for so many positions, rows of more than one
        position, and lines; None if there is none."""
        needed = max(positions, lines, longer * self.share if longer > LEAST_ROWS else 0)
        at = bisect_left(self.lengths, needed)
        return self.lengths[at] if at < len(self.lengths) else None


class MixedGraphs:
    """The positions of a step, from slots to hidden states of the lines that are wanted, as a
    graph; and from these to ids that are in the state already, as another.

        columns    the rows of the step, sent by the host
        rows       | of one position ...     | longer ones ... | padding ...
        positions  | one each                | theirs          | padding, up to the graph's size

    All graphs read and write the same memory, whatever their size.
    """

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Attention,
        state: CudaState,
        extent: Extent,
        memory: GraphMemory | None,
    ) -> None:
        self._model, self._kv, self._attention, self._state = model, kv, attention, state
        self._rows = state.padding_slot
        device = kv.content.device
        column: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._extent = extent
        width = -(-(max(self._rows, extent.lines) + 1) // 4) * 4
        self._blank = np.zeros((8, width), np.int32)
        self._blank[[SLOTS, SAMPLE_SLOTS]] = state.padding_slot
        self._columns = torch.tensor(self._blank, device=device)
        shape = len(kv.groups), self._rows, state.table.shape[2]
        self._table = torch.zeros(shape, **column)
        self._hidden = torch.zeros(
            (extent.lines, model.config.width), dtype=model.dtype, device=device
        )
        self.ids = torch.zeros(self._rows, **column)
        self._sizes = sizes(self._rows)
        self._held: dict[int, GraphAttention] = {}
        self._forward = CapturedGraphs(self._positions, memory)
        self._sample = CapturedGraphs(self._samples, memory)

    def captures(self) -> list[Capture]:
        """Every size, largest first, so that the smaller ones fit into its memory."""
        samples = [partial(self._sample.prepare, rows) for rows in reversed(self._sizes)]
        return [*self.captures_of_lengths(), *samples]

    def captures_of_lengths(self) -> list[Capture]:
        """Captures of the forward pass alone."""
        kinds = product(self._state.kinds, (True, False) if self._has_short else (True,))
        sizes = product(kinds, reversed(self._extent.lengths))
        return [partial(self._forward.prepare, (size, *kind)) for kind, size in sizes]

    @property
    def hidden(self) -> Tensor:
        """Hidden states of the lines of the latest step, [lines, width of the model]."""
        return self._hidden

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions of each graph."""
        return self._extent.lengths

    @property
    def most(self) -> int:
        """Positions of the largest graph."""
        return self._extent.lengths[-1]

    @property
    def _has_short(self) -> bool:
        """Whether there are graphs for steps without long rows: states of rows with drafts need
        no kernels for those, and most steps with drafts have none."""
        return self._extent.is_drafted and self._state.states is not None

    def rehearse(self, is_adapted: bool = False) -> None:
        """Run the largest step with the current columns, without a graph."""
        self._positions((self.most, is_adapted, True))
        self._samples(self._rows)

    def size(self, plan: Plan, lines: int = 0) -> int | None:
        """Size of the graph that a step with so many lines fits into, if there is one. Rows that
        sample once need no more lines than positions."""
        return self._extent.fitting(plan.total, int((plan.rows.count > 1).sum()), lines)

    def forward(self, plan: Plan, size: int, order: Index, wanted: Index, is_moving: bool) -> None:
        """Compute the rows in this order, in which singles come first. If rows are moving, they
        begin where their slots stand on the GPU, whatever the plan says."""
        key = self._captured(size, plan)
        rows, start = plan.rows, np.zeros_like(plan.start) if is_moving else plan.start
        columns, ends = self._columns_of(plan, order, start)
        columns[SAMPLE_AT, : len(wanted)] = ends[rows.samples[order]] - 1
        columns[SAMPLE_SLOTS, : len(wanted)] = rows.slot[wanted]
        columns[SAMPLE_CONTEXTS, : len(wanted)] = (start + rows.count)[wanted]
        self._state.send_into(self._columns, columns)
        if is_moving:
            self._stand(CONTEXTS, SLOTS)
            self._stand(SAMPLE_CONTEXTS, SAMPLE_SLOTS)
        self._forward.replay(key)

    def forward_lines(self, plan: Plan, size: int, order: Index, lines: I32) -> Tensor:
        """Compute the rows where their slots stand on the GPU. Return the hidden states of lines
        among the positions, which the next step overwrites."""
        key = self._captured(size, plan)
        columns, _ = self._columns_of(plan, order, np.zeros_like(plan.start))
        columns[SAMPLE_AT, : len(lines)] = lines
        self._state.send_into(self._columns, columns)
        self._stand(CONTEXTS, SLOTS)
        self._forward.replay(key)
        return self._hidden[: len(lines)]

    def _captured(self, size: int, plan: Plan) -> tuple[int, bool, bool]:
        """The graph of a step. A capture runs the step, which must not advance a sequence."""
        is_long = True
        if self._has_short:
            is_long = bool((plan.rows.count - plan.rows.drafts > 1).any())
        key = size, self._state.is_adapted(plan.rows.slot), is_long
        if self._forward.lacks(key):
            self._state.send_into(self._columns, self._blank)
            self._forward.prepare(key)
        return key

    def _stand(self, contexts: int, slots: int) -> None:
        """Let contexts that were counted from zero count from where the slots stand."""
        self._columns[contexts] += self._state.position.index_select(0, self._columns[slots])

    def sample(self, rows: int) -> Tensor:
        """Return ids of so many rows. The next step overwrites them."""
        self._sample.replay(self._sizes[bisect_left(self._sizes, rows)])
        return self.ids[:rows]

    def sample_masked(self, rows: int, masks: LogitMasks) -> Tensor:
        """Return ids that are sampled under masks, without a graph."""
        self._samples(self._sizes[bisect_left(self._sizes, rows)], masks)
        return self.ids[:rows]

    def wanted(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, slots and contexts of the rows that sample."""
        slot, context = self._columns[SAMPLE_SLOTS, :rows], self._columns[SAMPLE_CONTEXTS, :rows]
        return self._model.logits(self._hidden[:rows]), slot, context

    def _columns_of(self, plan: Plan, order: Index, start: I32) -> tuple[np.ndarray, np.ndarray]:
        """The columns of the rows in this order, and where each row ends among the positions."""
        rows, columns = plan.rows, self._blank.copy()
        count, number = rows.count[order], len(order)
        ends = np.cumsum(count)
        columns[BOUNDS, :2] = (count == 1).sum(), number
        columns[STARTS, 1:] = ends[-1]
        columns[STARTS, 1 : number + 1] = ends
        columns[CONTEXTS, :number] = (start + rows.count)[order]
        columns[SLOTS, :number] = rows.slot[order]
        columns[DRAFTS, :number] = rows.drafts[order]
        return columns, ends

    # -- what is captured ---------------------------------------------------

    def _positions(self, size: tuple[int, bool, bool]) -> None:
        """So many positions, with adapters or without. Without long rows, all that have several
        positions have drafts."""
        positions, is_adapted, has_long = size
        rows = min(self._rows, positions)
        state, columns = self._state, self._columns
        slot, starts, context = (columns[line] for line in (SLOTS, STARTS, CONTEXTS))
        starts, table = starts[: rows + 1], self._table[:, :rows]
        tokens, position, cells = spread(
            (state.tokens, state.table, state.position),
            (slot[:rows], starts, context[:rows]),
            table,
            positions,
            self._kv,
        )
        lines = min(self._extent.lines, positions)
        sample_at = columns[SAMPLE_AT, :lines]
        adapters = coordinates = None
        if is_adapted or state.has_coordinates:
            owner = self._owners(positions, rows)
            adapters = state.adapters_of(owner) if is_adapted else None
            coordinates = state.coordinates(owner, position)
        longer = self._longer(positions, rows)
        drafts = columns[DRAFTS, :rows] if self._extent.is_drafted else None
        batch = Batch(
            *(tokens, position, starts, context[:rows], table, cells, sample_at),
            adapters=adapters,
            coordinates=coordinates,
            states=state.states_of(slot[:rows], longer if has_long else 0, drafts),
        )
        if positions not in self._held:
            queries = Queries.of(self._model.config, self._model.dtype)
            held = self._attention.prepare_mixed_graph(
                batch, self._kv, columns[BOUNDS], longer, queries
            )
            self._held[positions] = held
        held = self._held[positions]
        held.lay_out()
        hidden = self._model.forward(batch, cells, self._kv, held, sample_at)
        self._hidden[:lines].copy_(hidden)

    def _longer(self, positions: int, rows: int) -> int:
        """Rows of more than one position, at most."""
        return min(rows, max(positions // self._extent.share, LEAST_ROWS))

    def _owners(self, positions: int, rows: int) -> Tensor:
        """The slots of positions; those after the last row have any slot."""
        slot, starts = self._columns[SLOTS, :rows], self._columns[STARTS, 1 : rows + 1]
        each = torch.arange(positions, dtype=torch.int32, device=slot.device)
        row = torch.searchsorted(starts, each, right=True).clamp(max=rows - 1)
        return slot.index_select(0, row)

    def _samples(self, rows: int, masks: LogitMasks | None = None) -> None:
        logits, slot, context = self.wanted(rows)
        if masks is not None:
            masks.apply(logits)
        self._state.choose(logits, slot, context, self.ids[:rows])
