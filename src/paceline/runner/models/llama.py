"""Llama 2 and 3, and what is built like it: SmolLM2, TinyLlama."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(paired_in_gguf=True)
