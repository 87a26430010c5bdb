"""A decoder of any architecture: token ids in, hidden states and logits out."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.attention.backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import Parts
from paceline.runner.layers.linear import Dense, LinearKind
from paceline.runner.layers.stack import stack_of
from paceline.runner.weights.checkpoint import Checkpoint, verify


class Model:
    """Weights in their final form. A forward changes nothing but the store it is given."""

    def __init__(self, parts: Parts) -> None:
        config = self.config = parts.config
        self.dtype = parts.dtype
        self._embedding = parts.read("model.embed_tokens.weight").to(parts.dtype)  # [vocab, width]
        scale = torch.tensor(config.embedding_scale, dtype=parts.dtype, device=parts.device)
        self._embedding_scale = scale
        self._layers = stack_of(parts)
        self._norm = parts.norm("model.norm")
        head = "model.embed_tokens" if config.tied_embedding else "lm_head"
        self._head = parts.linear([head])

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        linear_kind: LinearKind = Dense,
    ) -> "Model":
        verify(checkpoint)
        with torch.inference_mode():
            return Model(Parts(checkpoint, dtype, device, linear_kind))

    @torch.inference_mode()
    def forward(
        self, batch: Batch, kv: KVStore, attention: Attention, wanted: Tensor | None = None
    ) -> Tensor:
        """Hidden states of every position, or of those that are wanted, in their order; k and v
        of all are in the store."""
        hidden = F.embedding(batch.tokens, self._embedding)
        hidden.mul_(self._embedding_scale)
        return self._layers(hidden, batch, kv, attention.prepare(batch, kv), wanted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token id after the given positions, [n, vocab] in float32."""
        return self._head(self._norm(hidden)).float()
