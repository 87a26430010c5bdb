"""Drafts and samples the tokens of a step, under the controls and masks of its requests."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.masks import MaskRows, TokenMasks
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.models.model import Model
from paceline.runner.prompt_reports import PromptReport
from paceline.runner.proposer import Drafter, DraftInput, Drafts, check_drafts, check_shape
from paceline.runner.result import ResultBuilder
from paceline.runner.row_controls import RowControls
from paceline.runner.sampler import Sampler, TokenScores
from paceline.runner.token_mask import apply_masks, without_forbidden


@dataclass(frozen=True, slots=True, eq=False)
class ChosenTokens:
    """The tokens of the rows that sample."""

    first: Tensor  # [samples]; the position of the first one
    ids: Tensor  # [samples, 1 + most drafts]; -1 behind those that were taken
    taken: Tensor  # [samples]
    result: StepResult


class TokenSource(Protocol):
    """Where a runner gets the tokens of its steps."""

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        ...

    def draft(self, plan: Plan, rows: DraftInput) -> Drafts:
        """Drafts of the rows that sample."""
        ...

    def choose(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> ChosenTokens: ...

    def reported(self, report: PromptReport, result: StepResult, hidden: Tensor) -> StepResult:
        """The result with what requests want to know of their prompts."""
        ...


class StepTokens:
    """See `TokenSource`."""

    def __init__(
        self, model: Model, drafter: Drafter, sampler: Sampler, masks: TokenMasks | None
    ) -> None:
        self._model, self._drafter, self._sampler, self._masks = model, drafter, sampler, masks
        self._requests: dict[int, Request] = {}  # by slot
        self._controls = RowControls(sampler)

    def apply(self, plan: Plan) -> None:
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None:
                self._sampler.release(slot)
        for new in plan.admitted:
            self._sampler.admit(new.slot, new.request, new.tokens)  # may run out of memory
            self._requests[new.slot] = new.request
        if plan.admitted or plan.released:
            self._controls.forget()

    def draft(self, plan: Plan, rows: DraftInput) -> Drafts:
        """A draft that a constraint does not allow is left out, and those behind it."""
        drafts = self._drafter.draft(rows)
        check_shape(self._drafter, drafts, len(rows.number), rows.most)
        check_drafts(self._drafter, drafts.ids, rows.number, self._model.config.vocab)
        masks = self._masked(plan, np.flatnonzero(plan.rows.samples), drafts.ids)
        return (
            drafts if masks is None else replace(drafts, ids=without_forbidden(drafts.ids, masks))
        )

    def _masked(self, plan: Plan, wanted: np.ndarray, drafts: Tensor | None) -> MaskRows | None:
        if self._masks is None or not self._masks.wants(plan):
            return None
        places = None if drafts is None else drafts.int().numpy()
        return self._masks.fill(plan, wanted, places)

    def choose(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> ChosenTokens:
        rows = plan.rows
        wanted = np.flatnonzero(rows.samples)
        first, number = first_places(plan, batch)
        controls = self._controls.of(rows, wanted)
        asked = [self._requests[place] for place in rows.slot[wanted].tolist()]
        quiet = [row for row, request in enumerate(asked) if request.silent]
        at = lines(number, 0 if drafts is None else drafts.ids.shape[1])
        masks = self._masked(plan, wanted, None if drafts is None else drafts.ids)
        if masks is not None:
            apply_masks(logits, masks, at.flatten()[torch.from_numpy(masks.line)])
        raw = logits[at[quiet]] if quiet else logits
        if drafts is None:
            sampled = self._sampler.sample(logits, controls, first)
            ids, taken, bad = sampled.ids[:, None], torch.ones_like(sampled.ids), sampled.bad
            scores: tuple[TokenScores | None, ...] = (sampled.scores,)
        else:
            given = drafts.ids, controls, first, at, drafts.probabilities
            found = self._sampler.verify(logits, *given)
            ids, taken, bad, scores = found.ids, found.count, found.bad, found.scores
        controls.observe(ids, first)
        result = ResultBuilder(plan, wanted, ids, taken)
        result.fail(bad)
        result.add_logprobs(controls, scores)
        for row, own in zip(quiet, raw, strict=False):
            result.add_silent_logprobs(row, own, ids[row], asked[row])
        return ChosenTokens(first, ids, taken, result.build())

    def reported(self, report: PromptReport, result: StepResult, hidden: Tensor) -> StepResult:
        return report.added(result, hidden, self._model)


def first_places(plan: Plan, batch: Batch) -> tuple[Tensor, Tensor]:
    """Where the sampled tokens of rows that sample go, and their numbers of drafts, [samples]."""
    rows = plan.rows
    wanted = np.flatnonzero(rows.samples)
    number = torch.from_numpy(rows.drafts[wanted].astype(np.int64))
    return batch.context[torch.from_numpy(wanted)] - number, number


def lines(number: Tensor, most: int) -> Tensor:
    """Which line of logits each place of a row has, [rows, 1 + most], where row i has its own and
    one for each of its `number[i]` drafts. Places behind them have the last line of the row."""
    end = (number + 1).cumsum(0)
    first = (end - number - 1)[:, None]
    return torch.minimum(first + torch.arange(1 + most), end[:, None] - 1)
