"""An EAGLE-3 head: a layer that guesses the next token from what layers of a model read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import DenseLinear, Linear
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.mixers.self_attention import SelfAttention
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.architecture import DecoderSpec, LayerSpec, MLPSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.config_entries import ConfigEntries, expected
from paceline.runner.models.describe import describe
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.tensor_spec import GGUFForm, TensorSpec
from paceline.runner.weights.checkpoint import Checkpoint

# Heads are one layer of a Llama decoder, whatever the architecture of their model. Published files
# have these names and more of the kind; the tensors say what the file holds.
ARCHITECTURE = "LlamaForCausalLM"
NAMES = ("llama", "eagle")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
STATES = 3  # layers of the model that a head reads


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Everything about a head but its weights.

    decoder              its layer, as a decoder of one layer
    model_width          of the residual stream of the model that it drafts for
    draft_vocab          token ids that it can draft
    layers               of the model, whose inputs it reads; empty: the usual ones
    norm_before_residual the residual stream begins behind the norm of the hidden states
    """

    decoder: ModelConfig
    model_width: int
    draft_vocab: int
    layers: tuple[int, ...]
    norm_before_residual: bool

    @staticmethod
    def of_hf(given: Mapping[str, Any]) -> "Eagle3Config":
        """Read the content of a config.json, as EAGLE's authors or speculators write it."""
        raw = {**given, **given.get("transformer_layer_config", {})}
        with expected("config.json"):
            return _of_hf(ConfigEntries(raw, "config.json"))

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]:
        """Layers of this model whose inputs the head reads. ConfigError if it is for another."""
        if self.model_width != model.width or self.decoder.vocab != model.vocab:
            raise ConfigError(
                f"the EAGLE-3 head is for a model of width {self.model_width} with a vocabulary of "
                f"{self.decoder.vocab}, and this one has width {model.width} and a vocabulary of "
                f"{model.vocab}: use a head that was trained for the model"
            )
        last = model.layers - 1
        usual = (2, model.layers // 2, model.layers - STATES)
        layers = self.layers or tuple(min(max(layer, 0), last) for layer in usual)
        if len(layers) != STATES or not all(0 <= layer <= last for layer in layers):
            raise ConfigError(
                f"the EAGLE-3 head reads layers {list(layers)}; there must be {STATES}, and the "
                f"model has {model.layers}"
            )
        return layers


def _of_hf(read: ConfigEntries) -> Eagle3Config:
    name = str((read.get("architectures") or [""])[0]).lower()
    if not any(known in name for known in NAMES):
        raise ConfigError(
            f"config.json is of {name!r}, which is no EAGLE-3 head: supported are heads with a "
            "Llama layer"
        )
    if (layers := read.number("num_hidden_layers")) != 1:
        raise ConfigError(f"the EAGLE-3 head has {layers} layers; heads of one are supported")
    decoder = ModelConfig.of_hf(
        {**read.raw, "architectures": [ARCHITECTURE], "tie_word_embeddings": False}
    )
    return Eagle3Config(
        decoder=decoder,
        model_width=int(read.get("target_hidden_size", decoder.width)),
        draft_vocab=int(read.get("draft_vocab_size", decoder.vocab)),
        layers=_layers(read),
        norm_before_residual=bool(read.get("norm_before_residual")),
    )


def _layers(read: ConfigEntries) -> tuple[int, ...]:
    """At the top, numbers mean inputs of layers; in `eagle_config`, they mean outputs."""
    nested = ConfigEntries(read.get("eagle_config", {}), read.where)
    if nested.get("use_aux_hidden_state", True) is False:
        raise ConfigError("the EAGLE-3 head reads the last layer alone, which is not supported")
    if inputs := read.get(LAYER_IDS):
        return tuple(map(int, inputs))
    return tuple(int(layer) + 1 for layer in nested.get(LAYER_IDS, ()))


FC, HIDDEN_NORM = "fc.weight", "model.layers.0.hidden_norm.weight"


@dataclass(frozen=True, slots=True)
class Eagle3Spec:
    """A decoder of one layer, whose attention reads embeddings and hidden states side by side.

    decoder     embedding, layer, norm, and the head for ids that can be drafted
    fuse        from what layers of the model read to one hidden state
    """

    decoder: DecoderSpec
    fuse: LinearSpec

    @property
    def layer(self) -> LayerSpec:
        return self.decoder.layers[0]


def describe_head(config: Eagle3Config, max_model_len: int | None = None) -> Eagle3Spec:
    """Name every tensor of a head, as a decoder of one layer with some more."""
    plain = describe(config.decoder, max_model_len)
    width, attention = config.decoder.width, plain.layers[0].attention
    assert attention is not None
    doubled = (
        replace(weight, shape=(weight.shape[0], 2 * width)) for weight in attention.qkv.weights
    )
    norm = NormSpec(named(HIDDEN_NORM, width), config.decoder.norm_eps, 0.0)
    attention = replace(
        attention, qkv=replace(attention.qkv, weights=tuple(doubled)), second_norm=norm
    )
    head = replace(plain.head.weights[0], shape=(config.draft_vocab, width))
    decoder = replace(
        plain,
        layers=(replace(plain.layers[0], attention=attention),),
        head=LinearSpec((head,)),
    )
    return Eagle3Spec(decoder, LinearSpec((named(FC, width, STATES * config.model_width),)))


def named(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, GGUFForm(name))


class Eagle3Head:
    """An EAGLE-3 head: its weights in their final form."""

    def __init__(
        self, factory: LayerFactory[Linear], spec: Eagle3Spec, config: Eagle3Config
    ) -> None:
        layer = spec.layer
        assert isinstance(layer.mlp, MLPSpec)
        assert layer.attention is not None and layer.attention.second_norm is not None
        self.config, self._rope = config, layer.attention.rope
        self._dtype = factory.dtype
        self._frequencies = torch.tensor(
            (self._rope.frequencies, self._rope.amplitudes), device=factory.device
        )
        self._fuse = factory.linear(spec.fuse)
        self._attention = SelfAttention(factory, layer.attention, 0)
        self._input_norm = factory.input_norm(layer.attention.norm)
        self._hidden_norm = factory.norm(layer.attention.second_norm)
        self._mlp = MLP(factory, layer.mlp)
        self._norm = factory.norm(spec.decoder.norm)
        self._head = factory.linear(spec.decoder.head)

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        config: Eagle3Config,
        dtype: torch.dtype = torch.float32,
        max_model_len: int | None = None,
    ) -> "Eagle3Head":
        """Load weights. The longest sequence is `max_model_len`, or what the head is for."""
        with torch.inference_mode():
            factory = LayerFactory(checkpoint, dtype, "cpu", DenseLinear.of)
            return Eagle3Head(factory, describe_head(config, max_model_len), config)

    @property
    def decoder(self) -> ModelConfig:
        return self.config.decoder

    def layers_of(self, model: ModelConfig) -> tuple[int, ...]:
        return self.config.layers_of(model)

    @torch.inference_mode()
    def fuse(self, states: Tensor) -> Tensor:
        return self._fuse(states)

    @torch.inference_mode()
    def forward(
        self, embedded: Tensor, hidden: Tensor, batch: Batch, kv: KVStore, attention: Attention
    ) -> Tensor:
        rotations = {self._rope: Rotation.of(batch.position, self._frequencies, self._dtype)}
        cells = kv.cells(batch.write_cell).unbind()
        context = LayerContext(batch.position, rotations, kv, cells, attention.prepare(batch, kv))
        read = torch.cat((self._input_norm(embedded), self._input_norm(hidden)), dim=1)
        seen = self._attention(read, context)
        before = self.config.norm_before_residual
        total = self._hidden_norm(hidden) if before else hidden.clone()
        self._attention.add_to(total, seen)
        self._mlp.add_to(total)
        return total

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(self._norm(hidden)).float()
