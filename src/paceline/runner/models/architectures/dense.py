"""Text models with one MLP in each layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.rope import QueryGrowth
from paceline.runner.models.traits import BEHIND, MTPNames, NormNames, QKNorms, Traits

# OLMo 2 and 3: norms behind attention and MLP, and norms over all heads
OLMO2 = Traits(norms=BEHIND, qk_norm=True, qk_norms=QKNorms(whole=True))
# GLM-4 of 2025: norms on both sides, under names of its own
GLM4 = Traits(
    defaults=(("attention_bias", True), ("partial_rotary_factor", 0.5)),
    output_bias=False,
    norms=NormNames(attention_output="post_self_attn_layernorm", mlp_output="post_mlp_layernorm"),
    adjacent_pairs=True,
    fused_gate_up=True,
)
# Command R7B and Command A: attention and MLP read the same layer norm
COHERE2 = Traits(
    defaults=(("logit_scale", 0.0625),),
    norms=NormNames(mlp="input_layernorm", mlp_in_gguf="attn_norm"),
    layer_norm=True,
    parallel=True,
    adjacent_pairs=True,
    unrotated_global=True,
    global_every=4,
    tied_embedding=True,
)
# layer norms with biases, and an MLP without a gate
STARCODER2 = Traits(
    defaults=(("use_bias", True),),
    activation="gelu_pytorch_tanh",
    gated_mlp=False,
    layer_norm=True,
    norm_bias=True,
    global_every=0,
    tied_embedding=True,
    names=(("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")),
)
APERTUS = Traits(
    activation="xielu",
    gated_mlp=False,
    qk_norm=True,
    names=(
        ("input_layernorm", "attention_layernorm"),
        ("post_attention_layernorm", "feedforward_layernorm"),
    ),
)
# names of norms in both models of Hunyuan
QK_LAYERNORMS = (
    ("self_attn.q_norm", "self_attn.query_layernorm"),
    ("self_attn.k_norm", "self_attn.key_layernorm"),
)
MIMO_MTP = MTPNames(
    stem="model.mtp_layers.0",
    embedding_norm="token_layernorm",
    hidden_norm="hidden_layernorm",
    linear="input_proj",
    norm="final_layernorm",
    hidden_first=True,
)


def ministral3_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Queries grow with their position, in steps of the length before scaling."""
    rope = read.get("rope_parameters", {})
    if not (factor := rope.get("llama_4_scaling_beta")):
        return {}
    return {"query_growth": QueryGrowth(factor, rope["original_max_position_embeddings"], 0)}


ARCHITECTURES = {
    # Llama 2 and 3, and models of the same architecture: SmolLM2, TinyLlama
    "llama": Traits(paired_in_gguf=True),
    # a window in every layer, if the file gives one
    "mistral": Traits(global_every=0),
    "ministral": Traits(global_every=0),
    "ministral3": Traits(
        gguf="mistral3", global_every=0, paired_in_gguf=True, entries=ministral3_entries
    ),
    # Phi-3, Phi-3.5 and Phi-4: linears of the same input are stored as one
    "phi3": Traits(fused_linears=True, global_every=0),
    # Qwen 2 and 2.5: queries, keys and values have a bias
    "qwen2": Traits(qkv_bias=True),
    # MiMo: Qwen 2 with a head that drafts
    "mimo": Traits(qkv_bias=True, ignored=("model.mtp_layers.",), mtp=MIMO_MTP),
    # queries and keys are normalised instead of biased
    "qwen3": Traits(qk_norm=True),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, global_every=4, local_theta=500_000.0),
    # multipliers of the embedding, of scores, of what layers add, and of logits
    "granite": Traits(paired_in_gguf=True, divided_logits=True),
    # every fourth layer does not rotate
    "smollm3": Traits(unrotated_every=4, tied_embedding=True, paired_in_gguf=True),
    "glm": replace(GLM4, norms=NormNames()),
    "glm4": GLM4,
    "seedoss": Traits(
        defaults=(("attention_bias", True), ("attention_out_bias", False)),
        gguf="seed_oss",
        norms=NormNames(mlp_in_gguf="post_attention_norm"),
    ),
    # layers without a window do not rotate, if others have one
    "exaone4": Traits(norms=BEHIND, qk_norm=True, unrotated_global=True, global_every=4),
    "cohere2": COHERE2,
    "starcoder2": STARCODER2,
    "ernie4_5": Traits(adjacent_pairs=True, tied_embedding=True),
    # queries and keys are rotated before their norms
    "hunyuandensev1": Traits(
        gguf="hunyuan-dense",
        qk_norm=True,
        qk_norms=QKNorms(rotated=True),
        names=QK_LAYERNORMS,
    ),
    # AFM: an MLP without a gate
    "arcee": Traits(activation="relu2", gated_mlp=False, paired_in_gguf=True),
    "apertus": APERTUS,
}
