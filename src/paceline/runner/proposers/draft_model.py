"""Drafting with a smaller model of the same vocabulary."""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.plan import Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch, batch_of_slots
from paceline.runner.model_drafter import ModelDrafter, check_vocab
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.proposer import DraftingFor


class DraftModel(ModelDrafter):
    """Drafts with a model on a CPU.

    The KV of `computed[s]` positions of slot s is valid. Drafting computes the missing known tokens
    and all drafts but the last one; `observe` computes the rest of the step, and moves back to the
    last accepted draft.
    """

    weights = "model"

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self._model: Model | None = None
        self._attention: Attention | None = None
        self._computed = torch.zeros(0, dtype=torch.int64)  # [slots]

    def use(self, model: Model, attention: Attention) -> None:
        """Draft with these weights."""
        self._model, self._attention = model, attention

    def store_config(self) -> ModelConfig:
        if self._model is None:
            raise ConfigError("proposer 'draft_model' needs a model: name it in speculative_config")
        return self._model.config

    def attach(self, runner: DraftingFor) -> None:
        check_vocab(self.store_config(), runner.model.config)
        super().attach(runner)
        self._computed = torch.zeros_like(runner.columns.position)

    def follow(self, plan: Plan) -> None:
        super().follow(plan)
        for new in plan.admitted:
            self._computed[new.slot] = new.computed

    def observe(self, batch: Batch, slot: Tensor, inputs: Tensor | None) -> None:
        start = torch.maximum(self._computed[slot], batch.position[batch.row_start[:-1]])
        count = batch.context - start
        rest = count > 0
        if bool(rest.any()):
            self._forward(self._batch(slot[rest], start[rest], count[rest]), torch.arange(0))
        self._computed[slot] = self.runner.columns.position[slot]

    def next_logits(self, offset: int, slot: Tensor, known: Tensor, latest: Tensor) -> Tensor:
        assert self._model is not None
        end = known + offset
        start = end - 1 if offset else self._computed[slot]
        batch = self._batch(slot, start, end - start)
        if offset:
            batch = replace(batch, tokens=latest)
        return self._model.logits(self._forward(batch, batch.sample_at))

    def drafted(self, slot: Tensor, known: Tensor, number: Tensor) -> None:
        done = number > 0
        self._computed[slot[done]] = (known + number - 1)[done]

    def _batch(self, slot: Tensor, start: Tensor, count: Tensor) -> Batch:
        runner = self.runner
        return batch_of_slots(runner.columns, runner.block_size, slot, start, count)

    def _forward(self, batch: Batch, wanted: Tensor) -> Tensor:
        assert self._model is not None
        assert self._attention is not None
        return self._model.forward(batch, self.kv, self._attention, wanted)
