"""Qwen 2 and 2.5: queries, keys and values have a bias."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(qkv_bias=True)
