"""Describes latent attention."""

from dataclasses import replace

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.tensors import LayerTensors
from paceline.runner.models.latent import LatentAttentionSpec, LatentQuerySpec, LatentSizes
from paceline.runner.models.linear_spec import NormSpec
from paceline.runner.models.rope import Rope

EPS = 1e-6


def describe_latent(
    config: ModelConfig, sizes: LatentSizes, rope: Rope, tensors: LayerTensors
) -> LatentAttentionSpec:
    width, heads, has_bias = config.width, config.heads, config.attention_bias
    queries = heads * (sizes.key_dim + sizes.rope_dim)
    before, name, gguf, inputs = None, "q_proj", "attn_q", width
    if (rank := sizes.query_rank) is not None:
        before = LatentQuerySpec(
            tensors.linear("self_attn.q_a_proj", "attn_q_a", (rank, width), has_bias),
            _norm(tensors, "q_a_layernorm", "attn_q_a_norm", rank),
        )
        name, gguf, inputs = "q_b_proj", "attn_q_b", rank
    values = heads * sizes.value_dim
    expanded = heads * sizes.key_dim + values
    return LatentAttentionSpec(
        norm=tensors.norm("input_layernorm", "attn_norm", width),
        query=tensors.linear(f"self_attn.{name}", gguf, (queries, inputs)),
        latent=tensors.linear(
            "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", (sizes.width, width), has_bias
        ),
        latent_norm=_norm(tensors, "kv_a_layernorm", "attn_kv_a_norm", sizes.rank),
        expand=tensors.linear("self_attn.kv_b_proj", "attn_kv_b", (expanded, sizes.rank)),
        output=tensors.linear("self_attn.o_proj", "attn_output", (width, values), has_bias),
        heads=heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        rope=rope,
        adjacent_pairs=sizes.adjacent_pairs,
        scale=config.query_scale,
        query_latent=before,
    )


def _norm(tensors: LayerTensors, name: str, gguf: str, width: int) -> NormSpec:
    """The norm of a latent vector. Its eps is the same in all models, whatever their files say."""
    return replace(tensors.norm(f"self_attn.{name}", gguf, width), eps=EPS)
