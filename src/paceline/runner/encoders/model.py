"""BERT and RoBERTa: every position reads all others, so a text is computed in one pass."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.encoders.config import BERT, TextEncoderConfig

UNUSED = ("position_ids", "token_type_ids", "cls.", "lm_head.", "pooler.")


class Weights:
    """Tensors by name; each must be there, and each is read once."""

    def __init__(
        self, tensors: Mapping[str, Tensor], prefix: str, dtype: torch.dtype, device: str
    ) -> None:
        self._tensors, self._prefix = tensors, prefix
        self._dtype, self._device = dtype, device

    def __call__(self, name: str, has_prefix: bool = True) -> Tensor:
        whole = self._prefix + name if has_prefix else name
        if whole not in self._tensors:
            raise ConfigError(f"the checkpoint does not match its configuration; missing: {whole}")
        return self._tensors[whole].to(self._device, self._dtype)

    def pair(self, name: str, has_prefix: bool = True) -> tuple[Tensor, Tensor]:
        """A weight and a bias."""
        return self(f"{name}.weight", has_prefix), self(f"{name}.bias", has_prefix)


class TextEncoderLayer:
    """Attention and a feed-forward part, each followed by a norm of the sum with its input."""

    def __init__(self, weights: Weights, config: TextEncoderConfig, number: int) -> None:
        self._heads, self._width, self._floor = config.heads, config.width, config.floor
        name = f"encoder.layer.{number}"
        parts = [weights.pair(f"{name}.attention.self.{one}") for one in ("query", "key", "value")]
        self._qkv = torch.cat([one[0] for one in parts]), torch.cat([one[1] for one in parts])
        self._out = weights.pair(f"{name}.attention.output.dense")
        self._attention_norm = weights.pair(f"{name}.attention.output.LayerNorm")
        self._up = weights.pair(f"{name}.intermediate.dense")
        self._down = weights.pair(f"{name}.output.dense")
        self._norm = weights.pair(f"{name}.output.LayerNorm")
        self._activation = config.activation

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """`hidden` is [texts, positions, width]; `mask` says what positions may be read."""
        texts, positions, width = hidden.shape
        shape = texts, positions, self._heads, width // self._heads
        q, k, v = (
            one.view(shape).transpose(1, 2) for one in F.linear(hidden, *self._qkv).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        hidden = self._normed(hidden + F.linear(seen, *self._out), self._attention_norm)
        inner = activated(F.linear(hidden, *self._up), self._activation)
        return self._normed(hidden + F.linear(inner, *self._down), self._norm)

    def _normed(self, hidden: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(hidden, (self._width,), *norm, self._floor)


def activated(x: Tensor, name: str) -> Tensor:
    if name == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="none" if name == "gelu" else "tanh")


class TextEncoder:
    """Weights in their final form."""

    def __init__(
        self,
        config: TextEncoderConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.config, self.device = config, device
        weights = Weights(tensors, config.prefix, dtype, device)
        self._words = weights("embeddings.word_embeddings.weight")
        self._positions = weights("embeddings.position_embeddings.weight")
        self._segments = weights("embeddings.token_type_embeddings.weight")
        self._norm = weights.pair("embeddings.LayerNorm")
        self._layers = [
            TextEncoderLayer(weights, config, number) for number in range(config.layers)
        ]
        self._head: list[tuple[Tensor, Tensor]] = []  # of a classifier
        if config.classes and config.kind == BERT:
            self._head = [weights.pair("pooler.dense"), weights.pair("classifier", False)]
        elif config.classes:
            names = "classifier.dense", "classifier.out_proj"
            self._head = [weights.pair(name, False) for name in names]

    @torch.inference_mode()
    def forward(self, ids: Sequence[Tensor], separator: int | None = None) -> list[Tensor]:
        """Hidden states [positions, width] of each text. `separator` is the token between two
        texts of a pair."""
        longest = max(map(len, ids))
        tokens = torch.nn.utils.rnn.pad_sequence(list(ids), batch_first=True).to(self.device)
        lengths = torch.tensor([len(one) for one in ids], device=self.device)
        place = torch.arange(longest, device=self.device)
        mask = (place < lengths[:, None])[:, None, None, :]  # [texts, 1, 1, positions]
        segment = torch.zeros_like(tokens)
        if separator is not None and self.config.segments > 1:
            ends = (tokens == separator).long()
            segment = (ends.cumsum(1) - ends).clamp_(max=1)
        hidden = F.embedding(tokens, self._words) + F.embedding(segment, self._segments)
        hidden += self._positions[place + self.config.first_position]
        hidden = F.layer_norm(hidden, (self.config.width,), *self._norm, self.config.floor)
        for layer in self._layers:
            hidden = layer(hidden, mask)
        return [hidden[text, : len(one)] for text, one in enumerate(ids)]

    @torch.inference_mode()
    def classified(self, first: Tensor) -> Tensor:
        """Logits of classes [texts, classes], from the hidden states of the first positions."""
        dense, out = self._head
        return F.linear(F.linear(first, *dense).tanh(), *out)
