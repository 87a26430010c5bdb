"""Drafts on a GPU by a head that reads hidden states of the model."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.cuda.drafting.model_drafter import CudaModelDrafter
from paceline.runner.cuda.model import CudaModel
from paceline.runner.draft_heads.head import HeadWeights
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.proposer import DraftingFor


class CudaDraftHead(Protocol):
    """Weights of a head on a GPU: see `DraftHead`.

    Keys and values of a position follow from one embedding and one hidden state, so `store` needs
    no attention.
    """

    dtype: torch.dtype
    device: torch.device | str

    @property
    def decoder(self) -> ModelConfig: ...

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]: ...

    def fuse(self, states: Tensor) -> Tensor: ...

    def store(
        self, embedded: Tensor, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore
    ) -> object:
        """Write keys and values of positions."""
        ...

    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Any
    ) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class CudaHeadDrafter(CudaModelDrafter):
    """Hidden states of the model are kept by blocks, as KV is, so that hits, forks and swaps have
    them too.

    Position i of the head needs the token at i + 1. When the model computes position i + 1, its
    token is known, and the KV of position i is written.

        model     computes positions   4 5 6 7
        states    written              4 5 6 7
        head      writes KV of       3 4 5 6        3 from the state that an earlier step wrote
    """

    store_count = 2  # KV, and hidden states of the model
    behind = 2

    def __init__(
        self,
        config: SpeculationConfig,
        head: CudaDraftHead,
        ids: Tensor,
        embedding: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        """`ids` [draft_vocab] are token ids; the embedding is the model's if there is none. KV is
        of this type."""
        super().__init__(config, head.decoder.heads)
        self._head, self._ids, self._dtype = head, ids.to(head.device), dtype
        self._given = None if embedding is None else embedding.to(head.device, head.dtype)
        self.cell_bytes = self.bytes_of(head.decoder, head.dtype, dtype)

    @classmethod
    @abstractmethod
    def load_head(
        cls,
        weights: HeadWeights,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
    ) -> CudaDraftHead:
        """Load a head, for sequences up to this length."""

    @classmethod
    def bytes_of(cls, shape: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype) -> int:
        return super().bytes_of(shape, dtype, kv_dtype) + shape.width * dtype.itemsize

    def attach(self, runner: DraftingFor) -> None:
        self._read = self._head.layers_of(runner.model.config)
        self._embedding = shared_embedding(runner.model) if self._given is None else self._given
        super().attach(runner)
        self._states = self._stores[1].content.view(-1, self._head.decoder.width)

    def stores(self, device: torch.device) -> list[KVStore]:
        decoder, blocks = self._head.decoder, (self.runner.blocks, self.runner.block_size)
        return [
            KVStore(decoder, *blocks, self._dtype, device),
            KVStore(one_state(decoder), *blocks, self._head.dtype, device),
        ]

    def accompany(self, model: Any, attention: Any) -> tuple[Any, Any]:
        super().accompany(model, attention)
        return ObservedModel(model, self, self._read), attention

    def token_ids(self, ids: Tensor) -> Tensor:
        return self._ids[ids]

    def advance(
        self, tokens: Tensor, batch: Batch, attention: Any, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if hidden is None:
            hidden = self._states.index_select(0, self._indices(self.kv, batch.write_cell[0]))
        embedded = F.embedding(tokens, self._embedding)
        hidden = self._head.forward(embedded, hidden, batch, self.kv, attention)
        return self._head.logits(hidden), hidden

    def write(self, batch: Batch, cells: Tensor, kv: KVStore, inputs: Tensor) -> None:
        """The model computed a batch, in these cells of its store."""
        self._states.index_copy_(0, self._indices(kv, cells[0]), self._head.fuse(inputs))
        position, size = batch.position, kv.block_size
        before = (position - 1).clamp(min=0)
        numbers = torch.arange(len(position), dtype=torch.int32, device=position.device)
        row = torch.searchsorted(batch.row_start[1:].contiguous(), numbers, right=True)
        block = batch.block_table[0, row.clamp(max=batch.rows - 1), (before // size).long()].long()
        # The first position of a sequence has none before it, and fills up the block for padding.
        block = torch.where(position > 0, block, kv.blocks - 1)
        offset = before % size
        hidden = self._states.index_select(0, block * size + offset)
        own = self.kv.content
        into = block * own.stride(0) + offset * own.stride(2)
        # An embedding of its own has tokens alone; that of the model has those of images too.
        is_own = self._given is not None
        tokens = self.runner.model.plain_tokens(batch.tokens) if is_own else batch.tokens
        self._head.store(F.embedding(tokens, self._embedding), hidden, before, into, self.kv)

    @staticmethod
    def _indices(kv: KVStore, cells: Tensor) -> Tensor:
        """Indices of the positions of cells, counted through all blocks of a store."""
        block = cells // kv.content.stride(0)
        offset = (cells - block * kv.content.stride(0)) // kv.content.stride(2)
        return block * kv.block_size + offset


class ObservedModel(CudaModel):
    """A model, and a head that reads what some of its layers read."""

    def __init__(self, model: CudaModel, drafter: CudaHeadDrafter, layers: tuple[int, ...]) -> None:
        self.config, self.dtype, self.group = model.config, model.dtype, model.group
        self._main, self._drafter, self._read = model, drafter, layers

    def forward(
        self,
        batch: Batch,
        cells: Tensor,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        width = len(self._read) * self.config.width
        room = torch.empty((batch.positions, width), dtype=self.dtype, device=cells.device)
        kept = LayerInputs(self._read, room)
        hidden = self._main.forward(batch, cells, kv, attention, wanted, kept)
        self._drafter.write(batch, cells, kv, kept.rows)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._main.logits(hidden)


def shared_embedding(model: CudaModel) -> Tensor:
    """The embedding of the model, [vocab, width]."""
    check_embedding(model.config)
    return model.plain_embedding()


def check_embedding(model: ModelConfig) -> None:
    """ConfigError if a head without an embedding cannot use that of the model."""
    if describe(model).embedding_scale != 1.0:
        raise ConfigError(
            "the head has no embedding, and the model scales its own: use a head that has one, or "
            "device 'cpu'"
        )


def one_state(decoder: ModelConfig) -> ModelConfig:
    """A shape whose KV of a position has room for one hidden state."""
    half = decoder.width // 2
    return replace(decoder, heads=1, kv_heads=1, head_dim=half, rotary_dim=half, latent=None)
