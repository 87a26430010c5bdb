"""Sample the tokens of a step, and build its result."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.masks import MaskRows, TokenMasks
from paceline.core.plan import Candidates, Failed, Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.models.model import Model
from paceline.runner.native.library import is_available, library
from paceline.runner.prompt_reports import PromptReport
from paceline.runner.proposer import Drafter, DraftInput, Drafts, check_drafts, check_shape
from paceline.runner.sampling.controls import Controls
from paceline.runner.sampling.sampler import Sampler, TokenScores, score
from paceline.runner.tensors import from_numpy, to_ints


def apply_masks(logits: Tensor, masks: MaskRows, lines: Tensor) -> None:
    """Set the logits of tokens that a mask forbids to -inf. Mask i is for line `lines[i]`.

    Allowed tokens keep their logits, so rows of NaN are still detected.
    """
    bits, lines = np.ascontiguousarray(masks.rows), lines.contiguous()
    if logits.dtype != torch.float32 or not logits.is_contiguous() or not has_kernels():
        for line, is_forbidden in zip(to_ints(lines), ~masks.allowed(logits.shape[1]), strict=True):
            logits[line].masked_fill_(from_numpy(is_forbidden), -torch.inf)
        return
    library().mask_logits(
        logits.data_ptr(),
        logits.shape[1],
        lines.data_ptr(),
        bits.ctypes.data,
        bits.shape[1],
        len(bits),
        torch.get_num_threads(),
    )


def without_forbidden(drafts: Tensor, masks: MaskRows) -> Tensor:
    """Replace drafts [rows, most] from the first forbidden one on by -1."""
    rows, most = drafts.shape
    number = torch.bincount(from_numpy(masks.line) // (1 + most), minlength=rows)  # masks
    allowed = torch.where(number > 0, number - 1, most)
    return drafts.masked_fill(torch.arange(most) >= allowed[:, None], -1)


@cache
def has_kernels() -> bool:
    """Can the kernels be compiled? Cached, since every step would try again after a failure."""
    return is_available()


@dataclass(frozen=True, slots=True, eq=False)
class ChosenTokens:
    """The tokens of the rows that sample."""

    first: Tensor  # [samples]; position of the first token
    ids: Tensor  # [samples, 1 + most drafts]; -1 after those taken
    taken: Tensor  # [samples]
    result: StepResult


class TokenSource(Protocol):
    """Samples the tokens of the steps of a runner."""

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
        """Add prompt logprobs and pooled states to a result."""
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
        """Drafts of the rows that sample, up to the first that a constraint does not allow."""
        drafts = self._drafter.draft(rows)
        if self._model.is_invariant:  # a draft is right if it is what would be sampled without it
            drafts = Drafts(drafts.ids)
        check_shape(self._drafter, drafts, len(rows.number), rows.most)
        check_drafts(self._drafter, drafts.ids, rows.number, self._model.config.vocab)
        masks = self._masked(plan, np.flatnonzero(plan.rows.samples), drafts.ids)
        return (
            drafts if masks is None else replace(drafts, ids=without_forbidden(drafts.ids, masks))
        )

    def _masked(self, plan: Plan, wanted: np.ndarray, drafts: Tensor | None) -> MaskRows | None:
        if self._masks is None or not self._masks.wants(plan):
            return None
        ids = None if drafts is None else drafts.int().numpy()
        return self._masks.fill(plan, wanted, ids)

    def choose(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> ChosenTokens:
        rows = plan.rows
        wanted = np.flatnonzero(rows.samples)
        first, number = first_positions(plan, batch)
        controls = self._controls.of(rows, wanted)
        asked = [self._requests[slot] for slot in rows.slot[wanted].tolist()]
        quiet = [row for row, request in enumerate(asked) if request.silent]
        at = lines(number, 0 if drafts is None else drafts.ids.shape[1])
        masks = self._masked(plan, wanted, None if drafts is None else drafts.ids)
        if masks is not None:
            apply_masks(logits, masks, at.flatten()[from_numpy(masks.line)])
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
        for row, logits_of_row in zip(quiet, raw, strict=False):
            result.add_silent_logprobs(row, logits_of_row, ids[row], asked[row])
        return ChosenTokens(first, ids, taken, result.build())

    def reported(self, report: PromptReport, result: StepResult, hidden: Tensor) -> StepResult:
        return report.added(result, hidden, self._model)


def first_positions(plan: Plan, batch: Batch) -> tuple[Tensor, Tensor]:
    """For rows that sample, the position of the first token and the number of drafts: [samples]."""
    rows = plan.rows
    wanted = np.flatnonzero(rows.samples)
    number = from_numpy(rows.drafts[wanted].astype(np.int64))
    return batch.context[from_numpy(wanted)] - number, number


def lines(number: Tensor, most: int) -> Tensor:
    """The line of logits for each offset of a row, [rows, 1 + most]. Row i has 1 + `number[i]`
    lines; further offsets repeat its last line."""
    end = (number + 1).cumsum(0)
    first = (end - number - 1)[:, None]
    return torch.minimum(first + torch.arange(1 + most), end[:, None] - 1)


class RowControls:
    """Caches the controls as long as the same slots sample."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._rows: Rows | None = None  # of the cached controls
        self._slots: list[int] = []  # of these rows, if they sample
        self._controls: Controls | None = None

    def forget(self) -> None:
        """Drop the cache: slots have new sequences."""
        self._rows = self._controls = None

    def of(self, rows: Rows, wanted: np.ndarray) -> Controls:
        """The controls of the rows that sample."""
        if self._rows is not rows or self._controls is None:
            slots = rows.slot[wanted].tolist()
            if self._controls is None or self._slots != slots:
                self._controls, self._slots = self._sampler.controls(slots), slots
            self._rows = rows
        return self._controls


class ResultBuilder:
    """Collects the samples of a step by row of its plan."""

    def __init__(self, plan: Plan, wanted: np.ndarray, ids: Tensor, taken: Tensor) -> None:
        rows = len(plan.rows)
        self._plan, self._wanted = plan, wanted
        self._ids = np.full((rows, ids.shape[1]), -1, np.int32)
        self._ids[wanted] = ids.numpy()
        self._count = np.zeros(rows, np.int32)
        self._count[wanted] = taken.numpy()
        self._logprob: np.ndarray | None = None
        self._best: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # candidates by row
        self._failed: tuple[Failed, ...] = ()

    def fail(self, bad: Tensor) -> None:
        """Mark sampling rows without finite logits as failed; they yield no token."""
        rows = self._wanted[bad.numpy()]
        if not len(rows):
            return
        self._ids[rows], self._count[rows] = -1, 0
        step, labels = self._plan.step, self._plan.rows.labels
        self._failed = tuple(
            Failed(row, f"the logits of {labels[row]!r} in step {step} are not finite")
            for row in rows.tolist()
        )

    def add_logprobs(self, controls: Controls, scores: tuple[TokenScores | None, ...]) -> None:
        """Add log-probabilities of sampled tokens, and alternatives to the first one."""
        if controls.scored is None:
            return
        for offset, one in enumerate(scores):
            assert one is not None
            for index, row in enumerate(to_ints(controls.scored.rows)):
                self._given()[self._wanted[row], offset] = float(one.given[index])
                if offset == 0:
                    self._best[int(self._wanted[row])] = possible(one, index)

    def add_silent_logprobs(self, row: int, raw: Tensor, ids: Tensor, request: Request) -> None:
        """Add log-probabilities for a sequence group that is reported only at its end."""
        for offset in range(int(self._count[self._wanted[row]])):
            here = slice(offset, offset + 1)
            found = score(raw[here], ids[here], max(request.candidates, 1))
            self._given()[self._wanted[row], offset] = float(found.given[0])
            if offset == 0:
                self._best[int(self._wanted[row])] = possible(found, 0)

    def _given(self) -> np.ndarray:
        if self._logprob is None:
            self._logprob = np.zeros(self._ids.shape, np.float32)
        return self._logprob

    def build(self) -> StepResult:
        if not self._best:
            return StepResult(self._ids, self._count, self._logprob, failed=self._failed)
        most = max(len(ids) for ids, _ in self._best.values())
        found = Candidates(
            np.full((len(self._ids), most), -1, np.int32),
            np.full((len(self._ids), most), -np.inf, np.float32),
        )
        for row, (ids, values) in self._best.items():
            found.ids[row, : len(ids)] = ids
            found.logprob[row, : len(ids)] = values
        return StepResult(self._ids, self._count, self._logprob, found, failed=self._failed)


def possible(scores: TokenScores, index: int) -> tuple[np.ndarray, np.ndarray]:
    """The alternatives of a scored row, without tokens that a mask does not allow."""
    ids, values = scores.ids[index].numpy(), scores.values[index].numpy()
    kept = values > -np.inf  # a prefix, since values are in descending order
    return (ids, values) if kept.all() else (ids[kept], values[kept])
