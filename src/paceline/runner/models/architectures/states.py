"""Text models in which some layers keep a state of each sequence."""

from collections.abc import Mapping
from typing import Any

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.hf_config import FULL, STATE
from paceline.runner.models.states.gated_delta import gated_delta, gated_delta_by_key_head
from paceline.runner.models.traits import DecoderNames, TextPart, Traits


def qwen_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Every fourth layer has attention, and a quarter of each head rotates, by default."""
    every, layers = read.get("full_attention_interval", 4), read.number("num_hidden_layers")
    usual = [FULL if (layer + 1) % every == 0 else STATE for layer in range(layers)]
    return {
        "layer_types": read.get("layer_types", usual),
        "partial_rotary_factor": read.get("partial_rotary_factor", 0.25),
        "head_dim": read.get("head_dim", 256),
    }


HEADS_THAT_DRAFT = ("mtp.",)
QWEN3_NEXT = Traits(
    qk_norm=True,
    norm_offset=1.0,
    gated_attention=True,
    states=gated_delta_by_key_head,
    entries=qwen_entries,
    ignored=HEADS_THAT_DRAFT,
)
QWEN3_5 = Traits(
    qk_norm=True,
    norm_offset=1.0,
    gated_attention=True,
    states=gated_delta,
    entries=qwen_entries,
    ignored=HEADS_THAT_DRAFT,
    text_part=TextPart(
        DecoderNames("model.language_model"), defaults=(), images=("model.visual.",)
    ),
)
ARCHITECTURES = {"qwen3next": QWEN3_NEXT, "qwen3_5": QWEN3_5}
