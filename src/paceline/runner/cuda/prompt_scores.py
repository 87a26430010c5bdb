"""Scores of prompts on a card, made with their step and read when somebody waits for it."""

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
    """Scores of a step on their way to the host, where they are when the event has come."""

    plan: Plan
    spans: list[PromptSpan]
    scores: list[TokenScores]
    landed: torch.cuda.Event

    def read(self) -> tuple[PromptScores, ...]:
        self.landed.synchronize()
        # They are kept for long; pinned memory goes back at once.
        kept = [
            TokenScores(own.given.clone(), own.rank.clone(), own.ids.clone(), own.values.clone())
            for own in self.scores
        ]
        return by_request(self.plan, self.spans, kept)


class PromptScorer:
    """Scores what a step tells of the prompts of those who ask, and does not wait for it.

    Logits of as many positions are held at once as there are slots, which is what sampling for
    all of them holds too.
    """

    def __init__(
        self, model: CudaModel, asking: Mapping[int, Request], slots: int, device: torch.device
    ) -> None:
        """`asking` has requests by slot, and changes as they come and go."""
        self._model, self._asking, self._most = model, asking, slots
        self._staging = Staging(device)

    def spans(self, plan: Plan) -> list[PromptSpan]:
        """What a step tells, if its rows begin where the plan says."""
        return spans(plan, plan.start.tolist(), self._asking) if self._asking else []

    def score(self, plan: Plan, hidden: Tensor) -> ScoredPrompts | None:
        """Of the hidden states [positions, width] of a step; None if it tells nothing."""
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
    """The same in pinned memory, where they are some time after this returns."""
    columns = scores.given, scores.rank, scores.ids, scores.values
    return TokenScores(*(column.to("cpu", non_blocking=True) for column in columns))
