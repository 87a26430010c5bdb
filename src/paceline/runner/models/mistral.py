"""Mistral: Llama with a window in every layer, if the file gives one."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(global_every=0)
