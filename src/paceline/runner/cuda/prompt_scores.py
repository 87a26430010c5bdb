"""Scores and hidden states of prompts on a GPU, found with their step and read with its result."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.plan import Plan, StepResult
from paceline.core.pool_spans import PoolSpan, pool_spans
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import Residents
from paceline.runner.cuda.staging import Staging
from paceline.runner.parallel.group import decides
from paceline.runner.prompt_reports import (
    PromptSpan,
    by_request,
    pooled_spans,
    scored,
    slices_of,
    span_positions,
    spans,
    summed,
)
from paceline.runner.sampling.sampler import TokenScores


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPrompts:
    """Scores and sums of a step that are being copied to the host. `landed` marks the end of the
    copy."""

    plan: Plan
    spans: list[PromptSpan]
    scores: list[TokenScores]
    pools: list[PoolSpan]
    totals: Tensor | None  # [pools, width]
    landed: torch.cuda.Event

    def added(self, result: StepResult) -> StepResult:
        """The result with what was found about prompts."""
        self.landed.synchronize()
        # Results live long; copy them, so that pinned memory is free again at once.
        kept = [
            TokenScores(one.given.clone(), one.rank.clone(), one.ids.clone(), one.values.clone())
            for one in self.scores
        ]
        prompt = by_request(self.plan, self.spans, kept)
        pooled = () if self.totals is None else pooled_spans(self.plan, self.pools, self.totals)
        return replace(result, prompt=prompt, pooled=pooled)


class PromptScorer:
    """Scores prompt tokens for requests with `prompt_logprobs`, and adds up hidden states for
    requests with `pooling`, without waiting for the GPU.

    At most as many rows of logits as there are slots exist at once, which is what sampling needs
    too.
    """

    def __init__(
        self, model: CudaModel, residents: Residents, slots: int, device: torch.device
    ) -> None:
        self._model, self._residents, self._most = model, residents, slots
        self._samples = decides(model.group)
        self._staging = Staging(device)

    def wants(self, plan: Plan) -> bool:
        """Whether a step computes positions that requests want to know more of."""
        return bool(self._spans(plan) or self._pools(plan))

    def _spans(self, plan: Plan) -> list[PromptSpan]:
        asking = self._residents.asking
        return spans(plan, plan.start.tolist(), asking) if asking else []

    def _pools(self, plan: Plan) -> list[PoolSpan]:
        pooling = self._residents.pooling
        return pool_spans(plan, plan.start.tolist(), pooling) if pooling else []

    def score(self, plan: Plan, hidden: Tensor) -> ScoredPrompts | None:
        """Score the hidden states [positions, width] of a step; None if no request wants any."""
        found, pools = self._spans(plan), self._pools(plan)
        if not found and not pools:
            return None
        if not self._samples:
            return self._take_part(hidden, found)
        sent = self._staging.send(*(span.tokens for span in found)) if found else []
        scores = scored(hidden, found, map(Tensor.long, sent), self._logits, self._most)
        on_host = [leaving(one) for one in scores]
        totals = self._totals(hidden, pools) if pools else None
        landed = torch.cuda.Event()
        landed.record()
        return ScoredPrompts(plan, found, on_host, pools, totals, landed)

    def _take_part(self, hidden: Tensor, spans: list[PromptSpan]) -> None:
        """Compute the same logits on another rank, so that rank 0 has all of their columns."""
        for span in spans:
            for part in slices_of(hidden, span, self._most):
                self._model.logits(part)

    def _totals(self, hidden: Tensor, pools: list[PoolSpan]) -> Tensor:
        at, count = self._staging.send(*span_positions(pools))
        totals = summed(hidden, at, count, self._model.normed)
        return totals.to("cpu", non_blocking=True)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden).float()


def leaving(scores: TokenScores) -> TokenScores:
    """Start a copy to pinned memory."""
    columns = scores.given, scores.rank, scores.ids, scores.values
    return TokenScores(*(column.to("cpu", non_blocking=True) for column in columns))
