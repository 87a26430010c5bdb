"""Llama 2 and 3, and models of the same architecture: SmolLM2, TinyLlama."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(paired_in_gguf=True)
