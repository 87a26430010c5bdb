"""CUDA graphs that propose the drafts of a step and accept those that the model samples."""

from bisect import bisect_left
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import Index
from paceline.core.errors import PluginError
from paceline.core.plan import Plan
from paceline.runner.cuda.graphs.capture import Capture, CapturedGraphs, GraphMemory
from paceline.runner.cuda.kernels.drafts import put_drafts
from paceline.runner.cuda.kernels.sampling import choose
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.state import CudaState
from paceline.runner.proposer import Drafter, DraftInput

ROWS = (1, 4, 16, 64, 128, 256)
LEAST_SPAN, SPAN_FACTOR = 512, 4  # tokens that a proposer reads of each row
SLOTS, NEW, NUMBER = range(3)


def spans(most: int) -> list[int]:
    """Numbers of tokens to capture, for rows of up to `most` tokens."""
    found, span = list[int](), LEAST_SPAN
    while span < most:
        found.append(span)
        span *= SPAN_FACTOR
    return [*found, most]


def choose_lines(
    state: CudaState, logits: Tensor, owner: Tensor, known: Tensor, ids: Tensor
) -> None:
    """Sample by temperature after each line of rows with these slots and known tokens: from logits
    [rows * lines, vocab] to `ids` [rows, lines]. Ranks other than 0 have no logits, and get these
    ids later."""
    if not state.samples:
        return
    lines = ids.shape[1]
    offsets = torch.arange(lines, dtype=torch.int32, device=known.device)
    slot = owner[:, None].expand(-1, lines).reshape(-1)
    context = (known[:, None] + offsets).reshape(-1)
    choose(logits, state.temperature, state.key, slot, context, ids.view(-1))


class DraftGraphs:
    """Proposes drafts, and accepts those that the model samples too, for rows that sample by
    temperature alone. Between the two, other graphs compute the hidden states of all lines.

        columns   slots, known tokens that are not computed, and drafts of each row
        lines     | last known token, its drafts | the next row ... |, `width` for each row

    All graphs read and write the same memory, whatever their size. Rows that fill up a graph
    belong to the padding slot.
    """

    def __init__(
        self,
        model: CudaModel,
        state: CudaState,
        hidden: Tensor,
        drafter: Drafter,
        memory: GraphMemory | None,
    ) -> None:
        """`hidden` [lines, width of the model] has the hidden states."""
        self._model, self._state, self._hidden, self._drafter = model, state, hidden, drafter
        self.width = 1 + drafter.config.num_speculative_tokens  # lines of each row
        most = min(len(hidden) // self.width, state.padding_slot)
        self._rows = [*(rows for rows in ROWS if rows < most), most] if most else []
        self._spans = spans(state.tokens.shape[1]) if drafter.reads_tokens else [0]
        self._blank = np.zeros((3, most), np.int32)
        self._blank[SLOTS] = state.padding_slot
        on: dict[str, Any] = {"device": hidden.device}
        self._columns = torch.tensor(self._blank, **on)
        self._known = torch.zeros(most, dtype=torch.int32, **on)
        self._drafts = torch.zeros((most, self.width - 1), dtype=torch.int64, **on)
        self._ids = torch.zeros((most, self.width), dtype=torch.int32, **on)
        self._propose = CapturedGraphs(self._before, memory)
        self._verify = CapturedGraphs(self._after, memory)

    def captures(self) -> list[Capture]:
        """Every size, largest first, so that the smaller ones fit into its memory."""
        found: list[Capture] = []
        for rows in reversed(self._rows):
            found.append(partial(self._verify.prepare, rows))
            for span in reversed(self._spans if self._drafter.on_device else []):
                found.append(partial(self._propose.prepare, (rows, span)))
        return found

    def has_room(self, samples: int, drafts: int) -> bool:
        """Is there a graph for so many rows, with so many drafts each?"""
        return bool(self._rows) and samples <= self._rows[-1] and drafts < self.width

    def propose(self, plan: Plan, wanted: Index) -> None:
        """Put drafts behind the known tokens of the rows that sample."""
        rows, size = plan.rows, self._size(len(wanted))
        if self._verify.lacks(size):  # a capture runs it, which must not advance a state
            self._state.send_into(self._columns, self._blank)
            self._verify.prepare(size)
        columns, width = self._blank.copy(), (rows.count - rows.drafts)[wanted]
        columns[SLOTS, : len(wanted)] = rows.slot[wanted]
        columns[NEW, : len(wanted)] = width
        columns[NUMBER, : len(wanted)] = rows.drafts[wanted]
        self._state.send_into(self._columns, columns)
        longest = int((plan.start[wanted] + width).max())  # at least: rows may stand before it
        span = self._spans[bisect_left(self._spans[:-1], longest)]
        if self._drafter.on_device:
            self._propose.replay((size, span))
        else:
            self._before((size, span))

    def verify(self, samples: int) -> Tensor:
        """Return ids [samples, width] of the rows, -1 behind those that were accepted. The next
        step overwrites them."""
        self._verify.replay(self._size(samples))
        return self._ids[:samples]

    def _size(self, samples: int) -> int:
        return self._rows[bisect_left(self._rows, samples)]

    # -- what is captured ---------------------------------------------------

    def _before(self, size: tuple[int, int]) -> None:
        rows, span = size
        state, (owner, new, number) = self._state, self._columns[:, :rows]
        known, drafts = self._known[:rows], self._drafts[:rows]
        torch.add(state.position.index_select(0, owner), new, out=known)
        tokens = state.tokens[:, :span].index_select(0, owner)
        found = self._drafter.draft(DraftInput(owner, tokens, known, number, self.width - 1))
        if found.probabilities is not None:
            who = f"proposer {self._drafter.config.proposer!r}"
            raise PluginError(f"{who} returns probabilities, so it must have draws = True")
        drafts.copy_(found.ids)
        put_drafts(state.tokens, owner, known, state.shared(drafts), number)

    def _after(self, rows: int) -> None:
        state, known = self._state, self._known[:rows]
        owner, _, number = self._columns[:, :rows]
        drafts, ids = self._drafts[:rows], self._ids[:rows]
        logits = self._model.logits(self._hidden[: rows * self.width])
        choose_lines(state, logits, owner, known, ids)
        state.accept(owner, known, ids, drafts, number)
