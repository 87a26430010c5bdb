"""Text models with MoE layers."""

from paceline.runner.models.architecture import ClampedGate
from paceline.runner.models.traits import ExpertNames, Traits

# Mistral with experts in every layer
MIXTRAL = Traits(
    global_every=0,
    experts=ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2"),
    shares_sum_to_one=True,
    paired_in_gguf=True,
)
# Qwen 3 with experts in every layer or in some
QWEN3MOE = Traits(qk_norm=True, experts=ExpertNames("mlp"))
# gpt-oss: sinks, a window in every other layer, and experts with biases and clamped gates
GPTOSS = Traits(
    global_every=2,
    sinks=True,
    experts=ExpertNames("mlp", router="router", is_stacked=True, has_biases=True),
    shares_sum_to_one=True,
    clamp=ClampedGate(alpha=1.702, limit=7.0),
)
ARCHITECTURES = {"mixtral": MIXTRAL, "qwen3moe": QWEN3MOE, "gptoss": GPTOSS}
