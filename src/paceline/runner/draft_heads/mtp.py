"""MTP heads: a layer behind the last one of a model, trained to predict further tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.draft_heads.head import HeadWeights
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import TorchStack
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import DenseLinear, Linear
from paceline.runner.layers.torch_features import TORCH
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.mtp import MTPSpec, describe_mtp, layer_config
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.checkpoint import Checkpoint, compare


@runtime_checkable
class SideReader(Protocol):
    """A checkpoint that can read tensors that are no part of the model."""

    def beside(self, part: Any, tensors: Sequence[TensorSpec]) -> Checkpoint:
        """A checkpoint of these tensors, which a description has; some may be missing."""
        ...


class MTPWeights(HeadWeights):
    """The tensors of a head in the checkpoint of its model."""

    def __init__(self, model: Checkpoint) -> None:
        self.model, self._config = model.config, layer_config(model.config)
        if not isinstance(model, SideReader):
            raise ConfigError("GGUF files are read without MTP heads: use safetensors files")
        spec = describe_mtp(model.config)
        self.tensors = model.beside(spec, spec.tensors)
        found = self.tensors.shapes
        if (fuse := spec.fuse.weights[0].name) not in found:
            raise ConfigError(
                f"the checkpoint has no MTP head, because {fuse!r} is missing: use a checkpoint "
                "with one, or another proposer"
            )
        compare({tensor.name: tensor.shape for tensor in spec.tensors}, found)

    @property
    def config(self) -> ModelConfig:
        return self._config

    def target_ids(self) -> Tensor:
        return torch.arange(self._config.vocab)

    def read(self, name: str) -> Tensor:
        return self.tensors.read(name)


def output_layer(model: ModelConfig, of: ModelConfig) -> tuple[int, ...]:
    """What a head of a model reads: the output of the last layer. ConfigError for another model."""
    if model.layers != of.layers or model.width != of.width:
        raise ConfigError("the MTP head is in the checkpoint of another model")
    return (model.layers,)


class MTPHead:
    """An MTP head: its weights in their final form. Several drafts are made by running it on its
    own results."""

    def __init__(self, factory: LayerFactory[Linear], spec: MTPSpec, weights: MTPWeights) -> None:
        self._spec, self._weights = spec, weights
        self._model_norm = factory.norm(spec.model_norm)
        self._embedding_norm = factory.norm(spec.embedding_norm)
        self._hidden_norm = factory.norm(spec.hidden_norm)
        self._fuse = factory.linear(spec.fuse)
        self._layer = TorchStack(factory, spec.decoder)
        self._norm = factory.norm(spec.decoder.norm)
        self._head = factory.linear(spec.decoder.head)

    @staticmethod
    def load(weights: MTPWeights, max_model_len: int | None = None) -> "MTPHead":
        """Load weights. The longest sequence is `max_model_len`, or what the model is for."""
        spec = describe_mtp(weights.model, max_model_len)
        TORCH.require(spec.decoder)
        with torch.inference_mode():
            factory = LayerFactory(weights.tensors, torch.float32, "cpu", DenseLinear.of)
            return MTPHead(factory, spec, weights)

    @property
    def decoder(self) -> ModelConfig:
        return self._weights.config

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]:
        return output_layer(self._weights.model, model)

    @torch.inference_mode()
    def fuse(self, states: Tensor) -> Tensor:
        return self._model_norm(states)

    @torch.inference_mode()
    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Attention
    ) -> Tensor:
        both = self._embedding_norm(embedded), self._hidden_norm(hidden)
        total = self._fuse(torch.cat(both[::-1] if self._spec.hidden_first else both, dim=1))
        plain = replace(batch, images=None, adapters=None, states=None)
        return self._norm(self._layer(total, plain, kv, attention.prepare(plain, kv)))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden).float()
