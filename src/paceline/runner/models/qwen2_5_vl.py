"""Qwen2.5-VL: the decoder of Qwen2, with positions that have a time, a row and a column."""

from paceline.runner.models.qwen_vision_config import QwenVisionConfig
from paceline.runner.models.traits import DecoderNames, Traits

TRAITS = Traits(
    qkv_bias=True,
    decoder=DecoderNames("model.language_model", older="model"),
    vision=QwenVisionConfig,
)
