"""The interfaces of heads that draft, and of the files that they are in."""

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.checkpoint import Checkpoint


class DraftHead(Protocol):
    """Weights of a head on a CPU. `forward` changes only the KV store.

    Position i reads the token at i + 1 and the hidden state at i: the model's, or, where the model
    has not computed it yet, the head's own.

        tokens          | t1   | t2   | t3   | d4   |        t0 … t3 are known, and the model
        hidden states   | h0   | h1   | h2   | g2   |        computed 0 … 2
        results         | g0   | g1   | g2   | g3   |        g2 gives draft d4, g3 gives d5
    """

    @property
    def decoder(self) -> ModelConfig:
        """Its layer, as a decoder of one layer."""
        ...

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]:
        """Layers of this model whose inputs the head reads; one beyond the last reads the output of
        the last. ConfigError if the head is for another model."""
        ...

    def fuse(self, states: Tensor) -> Tensor:
        """One hidden state from what layers of the model read, [n, layers * width of the model]."""
        ...

    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Attention
    ) -> Tensor:
        """Return the hidden state after each position, [positions, width], from embeddings of the
        next tokens and hidden states, both [positions, width]. Keys and values are in the store
        afterwards. The tokens of the batch do not matter."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of ids that can be drafted, [n, draft_vocab], in float32."""
        ...


class HeadWeights(ABC):
    """The tensors of a head, and which token ids it can draft."""

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """The configuration of its layer, as a decoder."""

    @property
    def embedding(self) -> str | None:
        """The name of its embedding; None: it reads that of the model."""
        return None

    @abstractmethod
    def target_ids(self) -> Tensor:
        """The token ids that the head can draft, [draft_vocab]."""

    @abstractmethod
    def read(self, name: str) -> Tensor: ...


DraftWeights = Checkpoint | HeadWeights  # of a draft model, or of a head
