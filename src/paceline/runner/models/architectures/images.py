"""Models that read images."""

from paceline.runner.models.traits import DecoderNames, Traits
from paceline.runner.vision.qwen_config import QwenVisionConfig
from paceline.runner.vision.siglip_config import SigLIPConfig

# a Llama decoder that reads images in tiles; SmolVLM and SmolVLM2 are smaller
IDEFICS3 = Traits(decoder=DecoderNames("model.text_model"), vision=SigLIPConfig)
# the decoder of Qwen2, with positions that have a time, a row and a column
QWEN2_5_VL = Traits(
    qkv_bias=True,
    decoder=DecoderNames("model.language_model", older="model"),
    vision=QwenVisionConfig,
)
ARCHITECTURES = {"idefics3": IDEFICS3, "smolvlm": IDEFICS3, "qwen2_5_vl": QWEN2_5_VL}
