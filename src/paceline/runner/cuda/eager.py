"""Steps on a GPU that are launched kernel by kernel: rows of any number and length."""

import torch
from torch import Tensor

from paceline.core.plan import Plan
from paceline.runner.attention.backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.prompt_scores import PromptScorer, ScoredPrompts
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore


class EagerSteps:
    """Computes rows as the plan has them, and scores prompts where requests want that."""

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Attention,
        state: CudaState,
        prompts: PromptScorer,
    ) -> None:
        self._model, self._kv, self._attention = model, kv, attention
        self._state, self._prompts = state, prompts

    @torch.inference_mode()
    def hidden(
        self, plan: Plan, is_moving: bool, lines: Tensor | None = None
    ) -> tuple[Tensor, Batch, ScoredPrompts | None]:
        """Return the hidden states of the positions in `lines`, or of those that rows sample from;
        the batch; and scores of prompts.

        If rows are moving, the host does not know where they begin.
        """
        batch, cells, slot = self._state.batch(plan, is_moving)
        prepared = self._attention.prepare(batch, self._kv)
        lines = batch.sample_at if lines is None else lines
        is_asked = self._prompts.wants(plan)  # then any position is needed
        wanted = None if is_asked else lines
        hidden = self._model.forward(batch, cells, self._kv, prepared, wanted)
        self._state.advance(slot, batch.context)
        prompt = self._prompts.score(plan, hidden)
        return hidden.index_select(0, lines) if is_asked else hidden, batch, prompt

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)
