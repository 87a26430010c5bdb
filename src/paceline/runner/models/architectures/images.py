"""Models that read images."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertStack, ExpertTraits
from paceline.runner.models.traits import DecoderNames, Traits
from paceline.runner.vision import pixtral, qwen, square
from paceline.runner.vision.spec import VisionSpec, vision_entries

# Idefics3, SmolVLM and SmolVLM2: a decoder like Llama that reads images in tiles
IDEFICS3 = Traits(
    decoder=DecoderNames("model.text_model"), vision=square.idefics3, text_model="llama"
)
NAMES = DecoderNames("model.language_model", older="model")
# the decoder of Qwen2, with positions that have a time, a row and a column
QWEN2_VL = Traits(qkv_bias=True, decoder=NAMES, vision=qwen.qwen2)
QWEN2_5_VL = Traits(qkv_bias=True, decoder=NAMES, vision=qwen.qwen2_5)
# the decoder of Qwen3, whose first layers read images too
QWEN3_VL = Traits(qk_norm=True, decoder=NAMES, vision=qwen.qwen3)
# the same with experts, which are in one tensor
QWEN3_VL_MOE = replace(
    QWEN3_VL, experts=ExpertTraits("mlp", stack=ExpertStack(), shares_sum_to_one=True)
)
# any decoder behind a tower
BEHIND = DecoderNames(
    "model.language_model", older="language_model.model", older_head="language_model.lm_head"
)


def llava(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> VisionSpec:
    """The tower that config.json names."""
    is_pixtral = vision_entries(whole).get("model_type") == "pixtral"
    describe = pixtral.pixtral if is_pixtral else square.llava
    return describe(whole, output, settings)


LLAMA_7B: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 4096),
    ("intermediate_size", 11_008),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("max_position_embeddings", 2048),
    ("vocab_size", 32_000),
)
LLAVA = Traits(decoder=BEHIND, vision=llava, text_model="llama", defaults=LLAMA_7B)
# Mistral Small 3.1 and later, and Ministral 3
MISTRAL3 = Traits(decoder=BEHIND, vision=pixtral.mistral3, text_model="mistral")
INTERNVL = Traits(
    decoder=BEHIND,
    vision=square.internvl,
    text_model="qwen2",
    defaults=(("tie_word_embeddings", True),),
)
ARCHITECTURES = {
    "idefics3": IDEFICS3,
    "smolvlm": IDEFICS3,
    "qwen2vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_5_VL,
    "qwen3vl": QWEN3_VL,
    "qwen3vlmoe": QWEN3_VL_MOE,
    "llava": LLAVA,
    "internvl": INTERNVL,
    "mistral3": MISTRAL3,
}
