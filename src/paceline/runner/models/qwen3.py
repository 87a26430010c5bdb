"""Qwen 3, dense: queries and keys are normalised instead of biased."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(qk_norm=True)
