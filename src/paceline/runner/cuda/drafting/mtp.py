"""MTP heads on a GPU."""

from typing import Any

import torch
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.decoder_layer import CudaLayer
from paceline.runner.cuda.drafting.head_drafter import CudaHeadDrafter
from paceline.runner.cuda.kernels.layers import normalized
from paceline.runner.cuda.linears import CudaLinear
from paceline.runner.cuda.mixers.mixer import CudaLayerContext
from paceline.runner.cuda.model import CUDA
from paceline.runner.draft_heads.head import HeadWeights
from paceline.runner.draft_heads.mtp import MTPWeights, output_layer
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.architecture import parts_of
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.mtp import MTPSpec, describe_mtp
from paceline.runner.models.linear_spec import NormSpec
from paceline.runner.models.rope import Rope


class CudaNorm:
    """A norm with its factor, in one kernel."""

    def __init__(self, factory: LayerFactory[CudaLinear], norm: NormSpec) -> None:
        self._floor, self._factor = norm.floor, factory.factor(norm).to(factory.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return normalized(x, self._floor, self._factor)


class CudaMTPHead:
    """An MTP head: its weights in their final form."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: MTPSpec,
        weights: MTPWeights,
        max_model_len: int,
    ) -> None:
        (layer,) = spec.decoder.layers
        self.dtype, self.device = factory.dtype, factory.device
        self._weights, self._hidden_first = weights, spec.hidden_first
        self._model_norm = CudaNorm(factory, spec.model_norm)
        self._embedding_norm = CudaNorm(factory, spec.embedding_norm)
        self._hidden_norm = CudaNorm(factory, spec.hidden_norm)
        self._fuse = factory.linear(spec.fuse)
        tables = {
            rope: RotaryTable(rope, max_model_len + 1, factory.device)
            for rope in parts_of(layer, Rope)
        }
        self._layer = CudaLayer(factory, layer, 0, tables)
        self._norm = CudaNorm(factory, spec.decoder.norm)
        self._head = factory.linear(spec.decoder.head)

    @staticmethod
    def load(
        weights: MTPWeights,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
    ) -> "CudaMTPHead":
        spec = describe_mtp(weights.model, max_model_len)
        CUDA.require(spec.decoder)
        with torch.inference_mode():
            factory = LayerFactory(weights.tensors, dtype, device, CudaLinear)
            return CudaMTPHead(factory, spec, weights, max_model_len)

    @property
    def decoder(self) -> ModelConfig:
        return self._weights.config

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]:
        return output_layer(self._weights.model, model)

    def fuse(self, states: Tensor) -> Tensor:
        return self._model_norm(states)

    def store(
        self, embedded: Tensor, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore
    ) -> None:
        self._layer.store(self._read(embedded, hidden), position, cells, kv)

    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Any
    ) -> Tensor:
        cells = batch.write_cell.unbind()
        step = CudaLayerContext(batch.position, cells, kv, attention, None, {})
        return self._norm(self._layer(self._read(embedded, hidden), step))

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def _read(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """What the layer reads, [positions, width]."""
        both = self._embedding_norm(embedded), self._hidden_norm(hidden)
        return self._fuse(torch.cat(both[::-1] if self._hidden_first else both, dim=1))


class CudaMtp(CudaHeadDrafter):
    """Drafts with the MTP head of a model."""

    weights = "mtp head"

    @classmethod
    def load_head(
        cls,
        weights: HeadWeights,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
    ) -> CudaMTPHead:
        assert isinstance(weights, MTPWeights), "a head of another kind"
        return CudaMTPHead.load(weights, max_model_len, dtype, device)
