"""Qwen 3 with a mixture of experts, in every layer or in some."""

from paceline.runner.models.traits import ExpertNames, Traits

TRAITS = Traits(
    qk_norm=True,
    experts=ExpertNames("mlp"),
)
