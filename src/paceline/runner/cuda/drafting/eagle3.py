"""EAGLE-3 heads on a GPU."""

from typing import Any

import torch
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.cuda.coordinates import rotary_table
from paceline.runner.cuda.decoder_layer import CudaMLP
from paceline.runner.cuda.drafting.head_drafter import CudaHeadDrafter
from paceline.runner.cuda.kernels.attention.heads import HeadRotation, rotate_and_store
from paceline.runner.cuda.kernels.layers import DeferredNorm, normalized
from paceline.runner.cuda.linears import CudaLinear, ResidualLinear, ResidualParts
from paceline.runner.draft_heads.eagle3 import Eagle3Config, Eagle3Spec, describe_head
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.draft_heads.head import HeadWeights
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.architecture import MLPSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.checkpoint import Checkpoint


class CudaEagle3Head:
    """An EAGLE-3 head: its weights in their final form."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: Eagle3Spec,
        config: Eagle3Config,
        max_model_len: int,
    ) -> None:
        layer, attention = spec.layer, spec.layer.attention
        assert isinstance(layer.mlp, MLPSpec)
        assert attention is not None and attention.second_norm is not None
        self.config, self._attention = config, attention
        self.dtype, self.device = factory.dtype, factory.device
        self._fuse, self._qkv = factory.linear(spec.fuse), factory.qkv(attention)
        rotary = rotary_table(attention.rope, max_model_len + 1, factory.device)
        self._rotation = HeadRotation(rotary, None, 0.0)
        self._factor = factory.factor(attention.second_norm).to(factory.dtype)
        self._out = ResidualLinear(ResidualParts.of(factory, attention.output, None))
        self._mlp = CudaMLP(factory, layer.mlp)
        self._floor = spec.decoder.norm.floor
        assert attention.norm is not None
        self._input_floor = attention.norm.floor
        self._head = factory.linear(spec.decoder.head, spec.decoder.norm)

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        config: Eagle3Config,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
    ) -> "CudaEagle3Head":
        with torch.inference_mode():
            factory = LayerFactory(checkpoint, dtype, device, CudaLinear)
            spec = describe_head(config, max_model_len)
            return CudaEagle3Head(factory, spec, config, max_model_len)

    @property
    def decoder(self) -> ModelConfig:
        return self.config.decoder

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]:
        return self.config.layers_of(model)

    def fuse(self, states: Tensor) -> Tensor:
        return self._fuse(states)

    def store(
        self, embedded: Tensor, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore
    ) -> Tensor:
        """Return queries, keys and values, rotated."""
        floor = self._input_floor
        read = torch.cat((normalized(embedded, floor), normalized(hidden, floor)), dim=1)
        qkv = self._qkv(read).view(len(read), -1, self._attention.head_dim)
        rotate_and_store(qkv, self._rotation, DeferredNorm(hidden, 0.0, 0), position, cells, kv, 0)
        return qkv

    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Any
    ) -> Tensor:
        spec = self._attention
        qkv = self.store(embedded, hidden, batch.position, batch.write_cell[0], kv)
        how = 0, spec.window, spec.scale, spec.score_cap
        seen = attention.attend(qkv[:, : spec.heads], *how).view(len(hidden), -1)
        if self.config.norm_before_residual:
            total = normalized(hidden, self._input_floor).mul_(self._factor)
        else:
            total = hidden.clone()
        self._out(total, seen)
        self._mlp.add_to(total)
        return total

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(normalized(hidden, self._floor))


class CudaEagle3(CudaHeadDrafter):
    """Drafts with an EAGLE-3 head."""

    weights = "eagle3 head"

    @classmethod
    def load_head(
        cls,
        weights: HeadWeights,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
    ) -> CudaEagle3Head:
        assert isinstance(weights, Eagle3Folder), "a head of another kind"
        return CudaEagle3Head.load(weights, weights.head, max_model_len, dtype, device)
