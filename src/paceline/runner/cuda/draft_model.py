"""A smaller model on a GPU with the same vocabulary, which drafts token by token."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.core.speculation_config import SpeculationConfig
from paceline.runner.batch import Batch
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.model_drafter import CudaModelDrafter
from paceline.runner.cuda.paired_model import PairedAttention, PairedModel
from paceline.runner.kv_store import KVStore
from paceline.runner.model_drafter import check_vocab
from paceline.runner.proposer import DraftingFor


class CudaDraftModel(CudaModelDrafter):
    """Every step of the runner computes its positions with both models."""

    def __init__(self, config: SpeculationConfig, model: CudaModel, dtype: torch.dtype) -> None:
        """KV is of this type."""
        super().__init__(config, model.config.heads)
        self._model, self._dtype = model, dtype
        self.cell_bytes = self.bytes_of(model.config, model.dtype, dtype)

    def attach(self, runner: DraftingFor) -> None:
        check_vocab(self._model.config, runner.model.config)
        super().attach(runner)

    def stores(self, device: torch.device) -> list[KVStore]:
        blocks = self.runner.blocks, self.runner.block_size
        return [KVStore(self._model.config, *blocks, self._dtype, device)]

    def accompany(self, model: Any, attention: Any) -> tuple[Any, Any]:
        super().accompany(model, attention)
        pair = PairedModel(model, self._model, self.kv)
        return pair, PairedAttention(attention, self._model, self.kv)

    def advance(
        self, tokens: Tensor, batch: Batch, attention: Any, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        batch = replace(batch, tokens=tokens)
        hidden = self._model.forward(batch, batch.write_cell, self.kv, attention)
        return self._model.logits(hidden), hidden
