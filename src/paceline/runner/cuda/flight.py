"""Steps in flight on a GPU, and their results when they have landed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import Index
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.prompt_scores import PromptScorer, ScoredPrompts
from paceline.runner.cuda.residents import Residents
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore
from paceline.runner.sampling.controls import Controls
from paceline.runner.sampling.sampler import TokenScores
from paceline.runner.step_tokens import ResultBuilder
from paceline.runner.tensors import from_numpy


class EagerSteps:
    """Computes rows as the plan has them, and scores prompts where requests want that."""

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Attention,
        state: CudaState,
        residents: Residents,
        prompts: PromptScorer,
    ) -> None:
        self.model, self._kv, self._attention = model, kv, attention
        self._state, self._residents, self._prompts = state, residents, prompts

    def wants(self, plan: Plan) -> bool:
        """Does a step need more than graphs compute: scores of prompts, or images whose positions
        read each other?"""
        return self._prompts.wants(plan) or self._residents.read_images_whole(plan)

    @torch.inference_mode()
    def hidden(
        self, plan: Plan, is_moving: bool, lines: Tensor | None = None
    ) -> tuple[Tensor, Batch, ScoredPrompts | None]:
        """Return the hidden states of the positions in `lines`, or of those that rows sample from;
        the batch; and scores of prompts.

        If rows are moving, the host does not know where they begin.
        """
        batch, cells, slot = self._state.batch(plan, is_moving)
        batch = self._residents.with_ends(batch, plan)
        prepared = self._attention.prepare(batch, self._kv)
        lines = batch.sample_at if lines is None else lines
        is_asked = self._prompts.wants(plan)  # then any position is needed
        wanted = None if is_asked else lines
        hidden = self.model.forward(batch, cells, self._kv, prepared, wanted)
        self._state.advance(slot, batch.context)
        prompt = self._prompts.score(plan, hidden)
        return hidden.index_select(0, lines) if is_asked else hidden, batch, prompt

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)


@dataclass(frozen=True, slots=True, eq=False)
class Silent:
    """A row of a family that is reported at its end: its logits, before they were edited."""

    row: int  # among those that sample
    request: Request
    logits: Tensor  # [1 + drafts, vocab]


@dataclass(frozen=True, slots=True, eq=False)
class UnsampledStep:
    """A step whose model is launched. `sample` launches the rest, when the steps before it are
    committed: their tokens decide its masks."""

    sample: Callable[[], "LaunchedStep"]
    is_drafted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """A step on its way. What is still on the GPU is fetched when the step is waited for."""

    plan: Plan
    wanted: Index  # rows that sample
    ticket: Any  # of their ids; None if no row samples
    controls: Controls | None = None
    scores: tuple[TokenScores | None, ...] = ()  # of each position
    silent: tuple[Silent, ...] = ()
    prompt: ScoredPrompts | None = None  # scores of prompts
    is_drafted: bool = False

    def result(self, ids: np.ndarray) -> StepResult:
        """The result, from the ids of the rows that sample, one after the other; -1 is none."""
        found = ids.reshape(len(self.wanted), -1)  # [samples, 1 + drafts]
        first = found[:, 0]
        if self.controls is None and len(found) == len(self.plan.rows) and first.min() >= 0:
            return self._plain(found)
        return self._whole(from_numpy(found).long())

    def _plain(self, found: np.ndarray) -> StepResult:
        """Every row sampled, and no request wants more than its tokens."""
        ids = np.empty(found.shape, np.int32)
        ids[self.wanted] = found
        if not self.is_drafted:
            return StepResult(ids, np.ones(len(ids), np.int32))
        return StepResult(ids, (ids >= 0).sum(1, dtype=np.int32))

    def _whole(self, ids: Tensor) -> StepResult:
        """Some rows did not sample, failed, or want more than their tokens."""
        result = ResultBuilder(self.plan, self.wanted, ids, (ids >= 0).sum(1))
        result.fail(ids[:, 0] < 0)
        if self.controls is not None:
            result.add_logprobs(self.controls, tuple(map(on_host, self.scores)))
            for one in self.silent:
                result.add_silent_logprobs(one.row, one.logits.cpu(), ids[one.row], one.request)
        return result.build()


def on_host(scores: TokenScores | None) -> TokenScores | None:
    if scores is None:
        return None
    return TokenScores(scores.given.cpu(), scores.rank.cpu(), scores.ids.cpu(), scores.values.cpu())
