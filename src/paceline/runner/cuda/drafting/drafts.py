"""Steps with drafts on a GPU, which proposes, computes and verifies them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.plan import Plan
from paceline.runner.cuda.coordinates import LogitMasks
from paceline.runner.cuda.flight import EagerSteps, LaunchedStep, Silent, UnsampledStep
from paceline.runner.cuda.graphs.capture import Capture
from paceline.runner.cuda.graphs.drafts import DraftGraphs, choose_lines
from paceline.runner.cuda.graphs.mixed import MixedGraphs
from paceline.runner.cuda.kernels.drafts import put_drafts
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.prompt_scores import ScoredPrompts
from paceline.runner.cuda.residents import Residents
from paceline.runner.cuda.staging import Readback
from paceline.runner.cuda.state import CudaState
from paceline.runner.proposer import Drafter, DraftInput, check_shape
from paceline.runner.sampling.controls import Controls
from paceline.runner.sampling.sampler import Sampler


class DraftedSteps:
    """Launches steps with drafts in the pipeline: drafts are proposed on the GPU, behind the tokens
    of earlier steps that the host has not read."""

    def __init__(
        self,
        model: CudaModel,
        state: CudaState,
        graphs: tuple[MixedGraphs, DraftGraphs] | None,
        eager: EagerSteps,
        drafter: Drafter,
        choice: "Verification",
    ) -> None:
        """Steps that fit into no graph are launched kernel by kernel."""
        self._model, self._state, self._eager = model, state, eager
        self._graphs, self._ends = graphs or (None, None)
        self.drafter, self._choice = drafter, choice

    def captures(self) -> list[Capture]:
        """The graphs of every size."""
        if self._graphs is None or self._ends is None:
            return self.drafter.captures()
        ends = [*self._ends.captures(), *self.drafter.captures()]
        return [*self._graphs.captures_of_lengths(), *ends]

    def forget(self) -> None:
        """Sequences came or left: slots may have changed hands."""
        self._choice.forget()

    def launch(
        self, plan: Plan, order: Index, is_moving: bool, masks: LogitMasks | None
    ) -> LaunchedStep | UnsampledStep:
        """Launch a plan that has drafts; a graph computes the rows in this order, in which rows of
        one position come first. If rows are moving, the host does not know where they begin."""
        most, wanted = int(plan.rows.drafts.max()), order[plan.rows.samples[order]]
        is_drawn = self.drafter.draws
        if self._ends is not None and not is_drawn and self._ends.has_room(len(wanted), most):
            size = self._size(plan, self._ends.width)
            if size is not None and self._choice.is_captured(plan, wanted):
                return self._captured(plan, size, order, wanted)
        size = self._size(plan, 1 + most)
        if size is None:
            order = np.arange(len(plan.rows))
            wanted = order[plan.rows.samples[order]]
        lines = lines_of(plan, order, 1 + most)
        drafted = self._propose(plan, wanted)
        hidden, prompt = self._hidden(plan, size, order, lines, is_moving)
        logits = self._model.logits(hidden)
        verify = partial(self._choice.verify, plan, wanted, logits, drafted, prompt)
        if masks is None:
            return verify()
        return self._choice.masked(plan, wanted, drafted.drafts, verify, masks)

    def _captured(self, plan: Plan, size: int, order: Index, wanted: Index) -> LaunchedStep:
        """Propose, compute and verify by graphs alone."""
        assert self._graphs is not None
        assert self._ends is not None
        self._ends.propose(plan, wanted)
        self._graphs.forward_lines(plan, size, order, lines_of(plan, order, self._ends.width))
        return self._choice.fetched(plan, wanted, self._ends.verify(len(wanted)))

    def _size(self, plan: Plan, width: int) -> int | None:
        """Size of the graph that fits the step, with so many lines for each row that samples."""
        if self._graphs is None or self._eager.wants(plan):
            return None
        return self._graphs.size(plan, int(plan.rows.samples.sum()) * width)

    def _propose(self, plan: Plan, wanted: Index) -> "DraftedRows":
        """Draft for the rows that sample; the drafts are behind the known tokens."""
        rows, state = plan.rows, self._state
        width = (rows.count - rows.drafts)[wanted]
        sent = rows.slot[wanted].astype(np.int32), width, rows.drafts[wanted]
        slot, behind, number = state.send(*sent)
        known = state.position.index_select(0, slot) + behind
        longest = int((plan.start[wanted] + width).max())  # at least: rows may stand before it
        read = longest if self.drafter.reads_tokens else 0
        tokens = state.tokens[:, :read].index_select(0, slot)
        most = int(rows.drafts.max())
        found = self.drafter.draft(DraftInput(slot, tokens, known, number, most))
        check_shape(self.drafter, found, len(wanted), most)
        drafts = state.shared(found.ids.long().contiguous())
        put_drafts(state.tokens, slot, known, drafts, number)
        return DraftedRows(slot, known, number, drafts, found.probabilities)

    def _hidden(
        self, plan: Plan, size: int | None, order: Index, lines: I32, is_moving: bool
    ) -> tuple[Tensor, ScoredPrompts | None]:
        """Hidden states of all lines, and scores of prompts."""
        if self._graphs is not None and size is not None:
            return self._graphs.forward_lines(plan, size, order, lines), None
        (at,) = self._state.send(lines)
        hidden, _, prompt = self._eager.hidden(plan, is_moving, at)
        return hidden, prompt


@dataclass(frozen=True, slots=True, eq=False)
class DraftedRows:
    """The rows of a step that sample, in the order of their lines."""

    slot: Tensor  # [samples]
    known: Tensor  # [samples]
    number: Tensor  # [samples]; positions that are computed for drafts
    drafts: Tensor  # [samples, most drafts]
    probabilities: Tensor | None  # [samples, most drafts, vocab], where drafts were drawn


class Verification:
    """Samples after each line, and keeps what agrees with the drafts."""

    def __init__(
        self, state: CudaState, sampler: Sampler, residents: Residents, returns: Readback
    ) -> None:
        self._state, self._sampler = state, sampler
        self._residents, self._returns = residents, returns
        self._controls: Controls | None = None
        self._slots: list[int] = []  # that the controls are for

    def forget(self) -> None:
        self._controls = None

    def is_captured(self, plan: Plan, wanted: Index) -> bool:
        """Do all rows that sample do so by temperature alone, and without masks? Every rank has the
        same answer, also those that have no masks."""
        slots = plan.rows.slot[wanted]
        return self._residents.are_plain(slots) and not self._residents.any_masked(slots)

    def _are_plain(self, plan: Plan, wanted: Index) -> bool:
        return self._residents.are_plain(plan.rows.slot[wanted])

    def fetched(self, plan: Plan, wanted: Index, ids: Tensor) -> LaunchedStep:
        """The step whose accepted ids [samples, 1 + most drafts] are these."""
        ticket = self._returns.fetch(ids.reshape(-1))
        return LaunchedStep(plan, wanted, ticket, is_drafted=True)

    def masked(
        self,
        plan: Plan,
        wanted: Index,
        drafts: Tensor,
        verify: Callable[[LogitMasks | None], LaunchedStep],
        masks: LogitMasks,
    ) -> UnsampledStep:
        """Verify under masks, which depend on the drafts: the host reads these first."""
        ticket = self._returns.fetch(drafts.int().view(-1))

        def sample() -> LaunchedStep:
            masks.load(plan, wanted, self._returns.read(ticket).reshape(drafts.shape))
            return verify(masks)

        return UnsampledStep(sample, is_drafted=True)

    def verify(
        self,
        plan: Plan,
        wanted: Index,
        logits: Tensor,
        rows: DraftedRows,
        prompt: ScoredPrompts | None,
        masks: LogitMasks | None = None,
    ) -> LaunchedStep:
        """Sample from logits [samples * (1 + most drafts), vocab]."""
        if masks is not None:
            masks.apply(logits)
        if self._residents.is_invariant:  # a draft is right if it is what would be sampled
            rows = replace(rows, probabilities=None)
        step = LaunchedStep(plan, wanted, None, prompt=prompt, is_drafted=True)
        is_drawn = rows.probabilities is not None
        if self._state.samples and (is_drawn or not self._are_plain(plan, wanted)):
            step, ids = self._sample(step, logits, rows)
        else:
            ids = self._choose(logits, rows)
        self._state.accept(rows.slot, rows.known, ids, rows.drafts, rows.number)
        return replace(step, ticket=self._returns.fetch(ids.view(-1)))

    def _choose(self, logits: Tensor, rows: DraftedRows) -> Tensor:
        """Rows that want no more than a temperature: ids [samples, 1 + most drafts]."""
        shape = len(rows.slot), 1 + rows.drafts.shape[1]
        ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
        choose_lines(self._state, logits, rows.slot, rows.known, ids)
        return ids

    def _sample(
        self, step: LaunchedStep, logits: Tensor, rows: DraftedRows
    ) -> tuple[LaunchedStep, Tensor]:
        """Rows of which some want more: the step with what they want, and ids as above."""
        drafts = rows.drafts
        slots: list[int] = step.plan.rows.slot[step.wanted].tolist()
        controls = self._controls_for(slots)
        scores = logits.float().view(len(drafts), 1 + drafts.shape[1], -1)
        silent = tuple(
            Silent(row, request, scores[row].clone())
            for row, request in enumerate(map(self._residents.requests.__getitem__, slots))
            if request.silent
        )
        positions = rows.known.long()
        given = drafts, controls, positions, None, rows.probabilities
        found = self._sampler.verify(scores, *given)
        controls.observe(found.ids, positions)
        ids = found.ids.masked_fill(found.bad[:, None], -1).int()
        ids = self._residents.alike(slots, ids, lambda: self._choose(logits, rows))
        return replace(step, controls=controls, scores=found.scores, silent=silent), ids

    def _controls_for(self, slots: list[int]) -> Controls:
        if self._controls is None or self._slots != slots:
            self._controls, self._slots = self._sampler.controls(slots), slots
        return self._controls


def lines_of(plan: Plan, order: Index, width: int) -> I32:
    """Indices of positions whose logits are wanted, with the rows in this order: for each row that
    samples its last known token and its drafts, [samples * width].

    A row with fewer drafts repeats its last line.
    """
    rows = plan.rows
    last = (np.cumsum(rows.count[order]) - 1)[rows.samples[order]]
    drafts = rows.drafts[order][rows.samples[order]]
    lines: I32 = (last - drafts)[:, None] + np.minimum(np.arange(width), drafts[:, None])
    return lines.astype(np.int32).reshape(-1)
