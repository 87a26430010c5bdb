"""gpt-oss: sinks, a window in every other layer, and experts with biases and clamped gates."""

from paceline.runner.models.architecture import ClampedGate
from paceline.runner.models.traits import ExpertNames, Traits

TRAITS = Traits(
    global_every=2,
    sinks=True,
    experts=ExpertNames("mlp", router="router", is_stacked=True, has_biases=True),
    shares_sum_to_one=True,
    clamp=ClampedGate(alpha=1.702, limit=7.0),
)
