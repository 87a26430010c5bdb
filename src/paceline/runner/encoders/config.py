"""The configuration of an encoder, from its config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.pooling import CLASSIFIER, encoder_family
from paceline.core.system.files import json_object
from paceline.runner.encoders.describe import (
    bert,
    distilbert,
    modernbert,
    mpnet,
    of_decoder,
    roberta,
)
from paceline.runner.encoders.spec import EncoderSpec
from paceline.runner.models.architecture import DecoderSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.config_entries import ConfigEntries, expected
from paceline.runner.models.describe import describe

BIDIRECTIONAL = "use_bidirectional_attention"  # a key of decoders that are trained to embed texts
DESCRIBED: Mapping[str, Callable[[ConfigEntries], EncoderSpec]] = {
    "Bert": bert,
    "Roberta": roberta,
    "XLMRoberta": roberta,
    "DistilBert": distilbert,
    "MPNet": mpnet,
    "ModernBert": modernbert,
}


@dataclass(frozen=True, slots=True)
class TextEncoderConfig:
    """An encoder: its description and limits.

    spec        its tensors
    classes     of a classifier; 0: it makes embeddings
    max_tokens  of a text
    has_pairs   do the texts of a pair have different segments?
    """

    spec: EncoderSpec
    classes: int
    max_tokens: int
    has_pairs: bool = False

    @staticmethod
    def of_hf(raw: Mapping[str, Any]) -> "TextEncoderConfig":
        """Read the content of a config.json."""
        name, read = architecture(raw), ConfigEntries(raw, "config.json")
        longest = read.number("max_position_embeddings")
        if (family := encoder_family(name)) is None:
            return TextEncoderConfig(of_decoder(decoder_spec(raw)), 0, longest)
        spec = DESCRIBED[family](read)
        classes = len(raw.get("id2label") or {0: "", 1: ""}) if name.endswith(CLASSIFIER) else 0
        return TextEncoderConfig(
            spec=spec if classes else replace(spec, head=None),
            classes=classes,
            max_tokens=longest - spec.first_position,
            has_pairs=family == "Bert" and read.number("type_vocab_size", 2) > 1,
        )


def decoder_spec(raw: Mapping[str, Any]) -> DecoderSpec:
    """The description of a decoder that reads in both directions."""
    return describe(ModelConfig.of_hf({**raw, BIDIRECTIONAL: False}))


def architecture(raw: Mapping[str, Any]) -> str:
    named = raw.get("architectures") or [""]
    return str(named[0])


def encoder_config(folder: Path) -> TextEncoderConfig | None:
    """The configuration of an encoder in a folder; None if it has another kind of model."""
    file = folder / "config.json"
    if not file.is_file():
        return None
    raw = json_object(file)
    is_known = encoder_family(architecture(raw)) is not None
    if not (is_known or (raw.get(BIDIRECTIONAL) is True and architecture(raw).endswith("Model"))):
        return None
    with expected(str(file)):
        return TextEncoderConfig.of_hf(raw)
