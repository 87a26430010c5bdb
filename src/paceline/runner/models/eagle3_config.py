"""The configuration of an EAGLE-3 head, read from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.config_entries import ConfigEntries, expected

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
