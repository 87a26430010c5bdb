"""Text models of Qwen in which most layers are gated delta nets."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertStack, ExpertTraits
from paceline.runner.models.hf_config import FULL, STATE
from paceline.runner.models.states.gated_delta import (
    FROM_GGUF,
    gated_delta,
    gated_delta_by_key_head,
)
from paceline.runner.models.traits import DecoderNames, MTPNames, NormNames, TextPart, Traits
from paceline.runner.vision import qwen


def qwen_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Every fourth layer has attention, and a quarter of each head rotates, by default."""
    every, layers = read.get("full_attention_interval", 4), read.number("num_hidden_layers")
    usual = [FULL if (layer + 1) % every == 0 else STATE for layer in range(layers)]
    return {
        "layer_types": read.get("layer_types", usual),
        "partial_rotary_factor": read.get("partial_rotary_factor", 0.25),
        "head_dim": read.get("head_dim", 256),
        "intermediate_size": read.get("intermediate_size", read.get("moe_intermediate_size")),
    }


def qwen_header(read: ConfigEntries) -> Mapping[str, Any]:
    heads = read.number("ssm.time_step_rank")
    return {
        FROM_GGUF: True,
        "full_attention_interval": read.get("full_attention_interval", 4),
        "linear_num_key_heads": read.number("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": read.number("ssm.state_size"),
        "linear_value_head_dim": read.number("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": read.number("ssm.conv_kernel"),
        "num_experts": read.get("expert_count"),
        "num_experts_per_tok": read.get("expert_used_count"),
        "moe_intermediate_size": read.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": read.get("expert_shared_feed_forward_length"),
    }


HEADS_THAT_DRAFT = ("mtp.",)
QWEN_MTP = MTPNames(
    stem="mtp",
    layer=".layers.0",
    embedding_norm="pre_fc_norm_embedding",
    hidden_norm="pre_fc_norm_hidden",
    linear="fc",
    norm="norm",
)
SHARED_WITH_GATE = ExpertTraits(
    "mlp", shared="shared_expert", shared_gate="shared_expert_gate", shares_sum_to_one=True
)
QWEN3_NEXT = Traits(
    qk_norm=True,
    norms=NormNames(mlp_in_gguf="post_attention_norm"),
    header=qwen_header,
    norm_offset=1.0,
    gated_attention=True,
    experts=SHARED_WITH_GATE,
    states=gated_delta_by_key_head,
    entries=qwen_entries,
    ignored=HEADS_THAT_DRAFT,
    mtp=QWEN_MTP,
)
QWEN3_5 = Traits(
    gguf="qwen35",
    qk_norm=True,
    norms=NormNames(mlp_in_gguf="post_attention_norm"),
    header=qwen_header,
    norm_offset=1.0,
    gated_attention=True,
    states=gated_delta,
    entries=qwen_entries,
    ignored=HEADS_THAT_DRAFT,
    mtp=QWEN_MTP,
    text_part=TextPart(
        DecoderNames("model.language_model"),
        defaults=(),
        images=("model.visual.",),
        vision=qwen.qwen3_5,
    ),
)

ARCHITECTURES = {
    "qwen3_5": QWEN3_5,
    "qwen3_5moe": replace(
        QWEN3_5, gguf="qwen35moe", experts=replace(SHARED_WITH_GATE, stack=ExpertStack(outputs=1))
    ),
    "qwen3next": QWEN3_NEXT,
}
