"""Text models with MoE layers."""

from dataclasses import replace

from paceline.runner.models.architectures.dense import QK_LAYERNORMS
from paceline.runner.models.experts import ClampedGate, ExpertStack, ExpertTraits
from paceline.runner.models.traits import MTPNames, NormNames, QKNorms, Traits

MIXTRAL_EXPERTS = ExpertTraits(
    "block_sparse_moe", gate="w1", up="w3", down="w2", shares_sum_to_one=True
)
# Mistral with experts in every layer
MIXTRAL = Traits(
    global_every=0,
    experts=MIXTRAL_EXPERTS,
    paired_in_gguf=True,
)
# Qwen 3 with experts in every layer or in some
QWEN3MOE = Traits(qk_norm=True, experts=ExpertTraits("mlp"))
# gpt-oss: sinks, a window in every other layer, and experts with biases and clamped gates
GPTOSS = Traits(
    gguf="gpt-oss",
    gguf_defaults=(("rope.scaling.truncate", False),),
    norms=NormNames(mlp_in_gguf="post_attention_norm"),
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
# GLM-4.5 and later: norms of heads if the file says so, and half of each head rotates
GLM4MOE = Traits(
    defaults=(("partial_rotary_factor", 0.5),),
    output_bias=False,
    norms=NormNames(mlp_in_gguf="post_attention_norm"),
    experts=CORRECTED,
    mtp=MTPNames(),
)
# ERNIE 4.5: a router of softmax with a correction
ERNIE4_5_MOE = Traits(
    gguf="ernie4_5-moe",
    adjacent_pairs=True,
    tied_embedding=True,
    experts=ExpertTraits(
        "mlp",
        shared="shared_experts",
        correction="moe_statics.e_score_correction_bias",
        correction_rank=2,
        shares_sum_to_one=True,
    ),
    ignored=("model.mtp_",),
)
# MiniMax-M2: norms over all heads, and a router of sigmoids with a correction
MINIMAXM2 = Traits(
    gguf="minimax-m2",
    qk_norm=True,
    qk_norms=QKNorms(whole=True),
    experts=replace(MIXTRAL_EXPERTS, correction="e_score_correction_bias", scores="sigmoid"),
)
# Hunyuan: queries and keys are rotated before their norms
HUNYUANMOEV1 = Traits(
    gguf="hunyuan-moe",
    qk_norm=True,
    qk_norms=QKNorms(rotated=True),
    names=QK_LAYERNORMS,
    experts=ExpertTraits("mlp", router="gate.wg", shared="shared_mlp", shares_sum_to_one=True),
)
# Granite 3: multipliers, and all experts in two tensors
GRANITEMOE = Traits(
    divided_logits=True,
    paired_in_gguf=True,
    experts=ExpertTraits(
        "block_sparse_moe",
        router="router.layer",
        stack=ExpertStack("input_linear.weight", "output_linear.weight", outputs=1),
        shares_sum_to_one=True,
    ),
)
# dots.llm1: attention of Qwen 3
DOTS1 = Traits(qk_norm=True, experts=replace(CORRECTED, shares_sum_to_one=False))
# DeepSeek V2: latent attention, and routers of softmax, some with groups of experts
DEEPSEEKV2 = Traits(
    gguf="deepseek2",
    latent=True,
    experts=ExpertTraits("mlp", shared="shared_experts", sums_in_gguf=False),
)
# DeepSeek V3, and models of the same architecture: Kimi K2, Moonlight
DEEPSEEKV3 = Traits(latent=True, experts=CORRECTED, mtp=MTPNames())
# OLMoE: norms over all heads
OLMOE = Traits(
    qk_norm=True,
    qk_norms=QKNorms(whole=True),
    experts=ExpertTraits("mlp", sums_in_gguf=False),
)
# K-EXAONE: attention of EXAONE 4, with norms before each layer
EXAONEMOE = Traits(
    gguf="exaone-moe",
    qk_norm=True,
    unrotated_global=True,
    global_every=4,
    experts=replace(CORRECTED, correction="e_score_correction_bias"),
    ignored=("mtp.",),
)
ARCHITECTURES = {
    "mixtral": MIXTRAL,
    "qwen2moe": QWEN2MOE,
    "qwen3moe": QWEN3MOE,
    "gptoss": GPTOSS,
    "glm4moe": GLM4MOE,
    "ernie4_5_moe": ERNIE4_5_MOE,
    "minimaxm2": MINIMAXM2,
    "hunyuanmoev1": HUNYUANMOEV1,
    "granitemoe": GRANITEMOE,
    "dots1": DOTS1,
    "deepseekv2": DEEPSEEKV2,
    "deepseekv3": DEEPSEEKV3,
    # GLM-4.7 Flash
    "glm4moelite": DEEPSEEKV3,
    "olmoe": OLMOE,
    "exaonemoe": EXAONEMOE,
}
