"""SmolVLM and SmolVLM2: as Idefics3, but smaller."""

from paceline.runner.models.siglip_config import SigLIPConfig
from paceline.runner.models.traits import DecoderNames, Traits

TRAITS = Traits(decoder=DecoderNames("model.text_model"), vision=SigLIPConfig)
