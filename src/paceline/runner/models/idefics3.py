"""Idefics3: a Llama decoder that reads images in tiles."""

from paceline.runner.models.siglip_config import SigLIPConfig
from paceline.runner.models.traits import DecoderNames, Traits

TRAITS = Traits(decoder=DecoderNames("model.text_model"), vision=SigLIPConfig)
