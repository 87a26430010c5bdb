"""Text models with MoE layers."""

from dataclasses import replace

from paceline.runner.models.experts import ClampedGate, ExpertStack, ExpertTraits
from paceline.runner.models.traits import Traits

# Mistral with experts in every layer
MIXTRAL = Traits(
    global_every=0,
    experts=ExpertTraits("block_sparse_moe", gate="w1", up="w3", down="w2", shares_sum_to_one=True),
    paired_in_gguf=True,
)
# Qwen 3 with experts in every layer or in some
QWEN3MOE = Traits(qk_norm=True, experts=ExpertTraits("mlp"))
# gpt-oss: sinks, a window in every other layer, and experts with biases and clamped gates
GPTOSS = Traits(
    global_every=2,
    sinks=True,
    experts=ExpertTraits(
        "mlp",
        router="router",
        stack=ExpertStack(alternates=True),
        has_biases=True,
        shares_sum_to_one=True,
        clamp=ClampedGate(alpha=1.702, limit=7.0),
    ),
)
# Qwen 1.5 and 2: an expert of every position has a gate
QWEN2MOE = Traits(
    qkv_bias=True,
    experts=ExpertTraits(
        "mlp", shared="shared_expert", shared_gate="shared_expert_gate", sums_in_gguf=False
    ),
)
# Routers like that of DeepSeek V3: sigmoids, a correction, groups of experts and a scale
CORRECTED = ExpertTraits(
    "mlp",
    shared="shared_experts",
    correction="gate.e_score_correction_bias",
    scores="sigmoid",
    shares_sum_to_one=True,
)
# dots.llm1: attention of Qwen 3
DOTS1 = Traits(qk_norm=True, experts=replace(CORRECTED, shares_sum_to_one=False))
# DeepSeek V2: latent attention, and routers of softmax, some with groups of experts
DEEPSEEKV2 = Traits(
    latent=True, experts=ExpertTraits("mlp", shared="shared_experts", sums_in_gguf=False)
)
# DeepSeek V3, and models of the same architecture: Kimi K2, Moonlight
DEEPSEEKV3 = Traits(latent=True, experts=CORRECTED)
ARCHITECTURES = {
    "mixtral": MIXTRAL,
    "qwen2moe": QWEN2MOE,
    "qwen3moe": QWEN3MOE,
    "gptoss": GPTOSS,
    "dots1": DOTS1,
    "deepseekv2": DEEPSEEKV2,
    "deepseekv3": DEEPSEEKV3,
}
