"""What a step reports of prompts besides the next token: their scores, and their hidden states."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Plan, StepResult
from paceline.core.pool_spans import PoolSpan, pool_spans
from paceline.core.pooling import PooledSpan
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.models.model import Model
from paceline.runner.pooling import places, pooled_spans, summed
from paceline.runner.prompt_scores import PromptSpan, prompt_scores, slice_size, slices_of, spans


@dataclass(frozen=True, slots=True, eq=False)
class PromptReport:
    """The positions of a step that requests want to know more of."""

    plan: Plan
    asked: list[PromptSpan]
    pools: list[PoolSpan]

    def added(self, result: StepResult, hidden: Tensor, model: Model) -> StepResult:
        """The result with what the hidden states of all positions say."""
        prompt = prompt_scores(self.plan, self.asked, hidden, model) if self.asked else ()
        pooled = self._pooled(hidden, model) if self.pools else ()
        return replace(result, prompt=prompt, pooled=pooled)

    def take_part(self, hidden: Tensor, model: Model) -> None:
        """What another rank computes, so that `added` has its logits."""
        for span in self.asked:
            for part in slices_of(hidden, span, slice_size(model.config.vocab)):
                model.logits(part)

    def _pooled(self, hidden: Tensor, model: Model) -> tuple[PooledSpan, ...]:
        at, count = (torch.from_numpy(one.astype(np.int64)) for one in places(self.pools))
        return pooled_spans(self.plan, self.pools, summed(hidden, at, count, model.normed))


class PromptReports:
    """The residents that want more of their prompts than the next token, by slot."""

    def __init__(self) -> None:
        self._asking: dict[int, Request] = {}  # those that want scores
        self._pooling: dict[int, Request] = {}  # those that want an embedding

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        for slot in plan.released:
            self._asking.pop(slot, None)
            self._pooling.pop(slot, None)
        for new in plan.admitted:
            if new.request.sampling.prompt_logprobs is not None:
                self._asking[new.slot] = new.request
            if new.request.pooling:
                self._pooling[new.slot] = new.request

    def of_step(self, plan: Plan, batch: Batch) -> PromptReport | None:
        """What a step reports; None if it is nothing."""
        if not (self._asking or self._pooling):
            return None
        start = batch.position[batch.row_start[:-1]].tolist()
        asked = spans(plan, start, self._asking) if self._asking else []
        pools = pool_spans(plan, start, self._pooling) if self._pooling else []
        return PromptReport(plan, asked, pools) if asked or pools else None
