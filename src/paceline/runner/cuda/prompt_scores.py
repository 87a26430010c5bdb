"""Scores of prompts on a GPU, computed with their step and read with its result."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.plan import Plan, PromptScores
from paceline.core.request import Request
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.staging import Staging
from paceline.runner.prompt_scores import PromptSpan, by_request, scored, spans
from paceline.runner.sampler import TokenScores


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPrompts:
    """Scores of a step that are being copied to the host. `landed` marks the end of the copy."""

    plan: Plan
    spans: list[PromptSpan]
    scores: list[TokenScores]
    landed: torch.cuda.Event

    def read(self) -> tuple[PromptScores, ...]:
        self.landed.synchronize()
        # Results live long; copy them, so that pinned memory is free again at once.
        kept = [
            TokenScores(own.given.clone(), own.rank.clone(), own.ids.clone(), own.values.clone())
            for own in self.scores
        ]
        return by_request(self.plan, self.spans, kept)


class PromptScorer:
    """Scores prompt tokens for requests with `prompt_logprobs`, without waiting for the GPU.

    At most as many rows of logits as there are slots exist at once, which is what sampling needs
    too.
    """

    def __init__(
        self, model: CudaModel, asking: Mapping[int, Request], slots: int, device: torch.device
    ) -> None:
        """`asking` has these requests by slot; its owner updates it."""
        self._model, self._asking, self._most = model, asking, slots
        self._staging = Staging(device)

    def spans(self, plan: Plan) -> list[PromptSpan]:
        """Return the parts of prompts that a step scores."""
        return spans(plan, plan.start.tolist(), self._asking) if self._asking else []

    def score(self, plan: Plan, hidden: Tensor) -> ScoredPrompts | None:
        """Score the hidden states [positions, width] of a step; None if no request wants scores."""
        found = self.spans(plan)
        if not found:
            return None
        sent = self._staging.send(*(span.tokens for span in found))
        scores = scored(hidden, found, map(Tensor.long, sent), self._logits, self._most)
        on_host = [leaving(own) for own in scores]
        landed = torch.cuda.Event()
        landed.record()
        return ScoredPrompts(plan, found, on_host, landed)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden).float()


def leaving(scores: TokenScores) -> TokenScores:
    """Start a copy to pinned memory."""
    columns = scores.given, scores.rank, scores.ids, scores.values
    return TokenScores(*(column.to("cpu", non_blocking=True) for column in columns))
