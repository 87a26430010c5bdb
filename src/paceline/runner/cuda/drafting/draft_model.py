"""A smaller model on a GPU with the same vocabulary, which drafts token by token."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import Attention, GraphAttention, Prepared, Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.drafting.model_drafter import CudaModelDrafter
from paceline.runner.cuda.model import CudaModel
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.model_drafter import check_vocab
from paceline.runner.proposer import DraftingFor


def cells_in(store: KVStore, other: KVStore, cells: Tensor) -> Tensor:
    """Cells of one store, as indices into its first layer, in one with the same blocks."""
    given, wanted = other.content, store.content
    block = cells // given.stride(0)
    offset = (cells - block * given.stride(0)) // given.stride(2)
    return block * wanted.stride(0) + offset * wanted.stride(2)


class PairedPrepared(GraphAttention):
    """Attention of one step, prepared for both models."""

    def __init__(self, main: Any, second: Any) -> None:
        self.main, self.second = main, second

    def lay_out(self) -> None:
        self.main.lay_out()
        self.second.lay_out()

    def refresh(self, contexts: I32) -> None:
        self.main.refresh(contexts)
        self.second.refresh(contexts)

    def attend(self, *_: Any, **__: Any) -> Tensor:
        raise AssertionError("each model has its own")


class PairedAttention(Attention):
    """An attention backend that prepares steps for both models."""

    def __init__(self, attention: Attention, second: CudaModel, kv: KVStore) -> None:
        self._attention, self._second, self._kv = attention, second, kv
        self.support = attention.support

    def prepare(self, batch: Batch, kv: KVStore) -> PairedPrepared:
        prepare = self._attention.prepare
        return PairedPrepared(prepare(batch, kv), prepare(batch, self._kv))

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> PairedPrepared:
        prepare = self._attention.prepare_graph
        second = prepare(batch, self._kv, self._second.config.heads)
        return PairedPrepared(prepare(batch, kv, heads), second)

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> PairedPrepared:
        prepare = self._attention.prepare_mixed_graph
        second_queries = Queries.of(self._second.config, self._second.dtype)
        second = prepare(batch, self._kv, bounds, longer, second_queries)
        return PairedPrepared(prepare(batch, kv, bounds, longer, queries), second)


class PairedModel(CudaModel):
    """A model, and a second one that writes keys and values of the same positions to its store.
    The second one reads tokens alone: of an image, those that stand in the prompt for it.

    Hidden states and logits are those of the first one.
    """

    def __init__(self, model: CudaModel, second: CudaModel, kv: KVStore) -> None:
        self.config, self.dtype, self.group = model.config, model.dtype, model.group
        self._main, self._second, self._kv = model, second, kv
        self._none = torch.zeros(0, dtype=torch.int64, device=kv.content.device)

    def forward(
        self,
        batch: Batch,
        cells: Tensor,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        assert isinstance(attention, PairedPrepared)
        hidden = self._main.forward(batch, cells, kv, attention.main, wanted, inputs)
        second_cells = cells_in(self._kv, kv, cells)
        tokens = self._main.plain_tokens(batch.tokens)
        # Images, adapters and coordinates are for the first model.
        plain = replace(batch, tokens=tokens, images=None, adapters=None, coordinates=None)
        self._second.forward(plain, second_cells, self._kv, attention.second, self._none)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._main.logits(hidden)


class CudaDraftModel(CudaModelDrafter):
    """Every step of the runner computes its positions with both models."""

    weights = "model"
    store_count = 1

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
