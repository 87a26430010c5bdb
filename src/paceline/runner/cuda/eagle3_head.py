"""An EAGLE-3 head on a GPU; `models.eagle3_head` computes the same in torch."""

from typing import Any

import torch
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.layers import (
    DeferredNorm,
    HeadRotation,
    normalized,
    rotate_and_store,
)
from paceline.runner.cuda.model import CudaMLP
from paceline.runner.cuda.products import ResidualLinear, ResidualParts
from paceline.runner.cuda.turns import rotary_table
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import DenseLinear, LinearKind
from paceline.runner.models.architecture import MLPSpec
from paceline.runner.models.eagle3_config import Eagle3Config
from paceline.runner.models.eagle3_head import Eagle3Spec, describe_head
from paceline.runner.weights.checkpoint import Checkpoint


class CudaEagle3Head:
    """Weights on a GPU in their final form.

    Keys and values of a position follow from one embedding and one hidden state, so `store` needs
    no attention.
    """

    def __init__(
        self, factory: LayerFactory, spec: Eagle3Spec, config: Eagle3Config, max_model_len: int
    ) -> None:
        layer, attention = spec.layer, spec.layer.attention
        assert isinstance(layer.mlp, MLPSpec)
        assert attention.second_norm is not None
        self.config, self._attention = config, attention
        self.dtype, self.device = factory.dtype, factory.device
        self._fuse, self._qkv = factory.linear(spec.fuse), factory.qkv(attention)
        turns = rotary_table(attention.rope, max_model_len + 1, factory.device)
        self._turn = HeadRotation(turns, None, 0.0)
        self._factor = factory.factor(attention.second_norm).to(factory.dtype)
        self._out = ResidualLinear(ResidualParts.of(factory, attention.output, None))
        self._mlp = CudaMLP(factory, layer.mlp)
        self._floor = spec.decoder.norm.floor
        self._head = factory.linear(spec.decoder.head, spec.decoder.norm)

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        config: Eagle3Config,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
        linear_kind: LinearKind = DenseLinear,
    ) -> "CudaEagle3Head":
        with torch.inference_mode():
            factory = LayerFactory(checkpoint, dtype, device, linear_kind)
            spec = describe_head(config, max_model_len)
            return CudaEagle3Head(factory, spec, config, max_model_len)

    def fuse(self, states: Tensor) -> Tensor:
        """One hidden state from what layers of the model read, [n, layers * width of the model]."""
        return self._fuse(states)

    def store(
        self, embedded: Tensor, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore
    ) -> Tensor:
        """Write keys and values of positions; return queries, keys and values, rotated."""
        floor = self._attention.norm.floor
        read = torch.cat((normalized(embedded, floor), normalized(hidden, floor)), dim=1)
        qkv = self._qkv(read).view(len(read), -1, self._attention.head_dim)
        rotate_and_store(qkv, self._turn, DeferredNorm(hidden, 0.0, 0), position, cells, kv, 0)
        return qkv

    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Any
    ) -> Tensor:
        """Return the hidden state after each position, [positions, width]."""
        spec = self._attention
        qkv = self.store(embedded, hidden, batch.position, batch.write_cell[0], kv)
        how = 0, spec.window, spec.scale, spec.score_cap
        seen = attention.attend(qkv[:, : spec.heads], *how).view(len(hidden), -1)
        if self.config.norm_before_residual:
            total = normalized(hidden, spec.norm.floor).mul_(self._factor)
        else:
            total = hidden.clone()
        self._out(total, seen)
        self._mlp.add_to(total)
        return total

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of ids that can be drafted, [n, draft_vocab]."""
        return self._head(normalized(hidden, self._floor))
