"""The configuration of an encoder, from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object

BERT, ROBERTA = "bert", "roberta"
# Architectures, and the names that their tensors begin with.
ARCHITECTURES = {
    "BertModel": (BERT, ""),
    "BertForMaskedLM": (BERT, "bert."),
    "BertForSequenceClassification": (BERT, "bert."),
    "RobertaModel": (ROBERTA, ""),
    "RobertaForMaskedLM": (ROBERTA, "roberta."),
    "RobertaForSequenceClassification": (ROBERTA, "roberta."),
    "XLMRobertaModel": (ROBERTA, ""),
    "XLMRobertaForMaskedLM": (ROBERTA, "roberta."),
    "XLMRobertaForSequenceClassification": (ROBERTA, "roberta."),
}
ACTIVATIONS = ("gelu", "relu", "gelu_new", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True)
class TextEncoderConfig:
    """Sizes of an encoder, and how its tensors are named."""

    kind: str  # BERT or ROBERTA
    prefix: str  # of the names of its tensors
    classes: int  # of a classifier; 0: it makes embeddings
    width: int
    layers: int
    heads: int
    vocab: int
    max_tokens: int
    first_position: int  # RoBERTa's positions begin after the padding id
    segments: int  # kinds of texts in a pair
    floor: float  # of its norms
    activation: str

    @staticmethod
    def of_hf(raw: Mapping[str, Any]) -> "TextEncoderConfig":
        name = architecture(raw)
        kind, prefix = ARCHITECTURES[name]
        if raw.get("position_embedding_type", "absolute") != "absolute":
            raise ConfigError("position_embedding_type is not 'absolute'; it is not supported")
        activation = raw.get("hidden_act", "gelu")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"hidden_act is {activation!r}; {', '.join(ACTIVATIONS)} are known")
        first = int(raw.get("pad_token_id", 1)) + 1 if kind == ROBERTA else 0
        classes = len(raw.get("id2label") or {0: "", 1: ""})
        return TextEncoderConfig(
            kind=kind,
            prefix=prefix,
            classes=classes if name.endswith("ForSequenceClassification") else 0,
            width=raw["hidden_size"],
            layers=raw["num_hidden_layers"],
            heads=raw["num_attention_heads"],
            vocab=raw["vocab_size"],
            max_tokens=raw["max_position_embeddings"] - first,
            first_position=first,
            segments=raw.get("type_vocab_size", 2),
            floor=raw.get("layer_norm_eps", 1e-12),
            activation=activation,
        )


def architecture(raw: Mapping[str, Any]) -> str:
    named = raw.get("architectures") or [""]
    return str(named[0])


def encoder_config(folder: Path) -> TextEncoderConfig | None:
    """The configuration of an encoder in a folder; None if there is another model."""
    file = folder / "config.json"
    if not file.is_file():
        return None
    raw = json_object(file)
    if architecture(raw) not in ARCHITECTURES:
        return None
    try:
        return TextEncoderConfig.of_hf(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is no configuration of an encoder: {error!r}") from None
