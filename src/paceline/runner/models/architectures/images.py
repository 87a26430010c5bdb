"""Models that read images."""

from typing import Any

from paceline.runner.models.traits import DecoderNames, Traits
from paceline.runner.vision import qwen, square

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
# any decoder behind a tower
BEHIND = DecoderNames(
    "model.language_model", older="language_model.model", older_head="language_model.lm_head"
)
LLAMA_7B: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 4096),
    ("intermediate_size", 11_008),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("max_position_embeddings", 2048),
    ("vocab_size", 32_000),
)
LLAVA = Traits(decoder=BEHIND, vision=square.llava, text_model="llama", text_defaults=LLAMA_7B)
INTERNVL = Traits(
    decoder=BEHIND,
    vision=square.internvl,
    text_model="qwen2",
    text_defaults=(("tie_word_embeddings", True),),
)
ARCHITECTURES = {
    "idefics3": IDEFICS3,
    "smolvlm": IDEFICS3,
    "qwen2vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_5_VL,
    "qwen3vl": QWEN3_VL,
    "llava": LLAVA,
    "internvl": INTERNVL,
}
