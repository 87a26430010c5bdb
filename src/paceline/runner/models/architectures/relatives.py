"""Text models that differ little from another architecture."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.runner.models.architectures.dense import COHERE2
from paceline.runner.models.architectures.experts import CORRECTED
from paceline.runner.models.architectures.gemma import GEMMA2
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertTraits
from paceline.runner.models.hf_config import FULL, SLIDING
from paceline.runner.models.traits import NormNames, Traits


def solar_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """All layers have experts, and the file has no width of an MLP."""
    inner = read.get("intermediate_size", read.get("moe_intermediate_size"))
    return {"intermediate_size": inner, "first_k_dense_replace": 0}


def hunyuan_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """The first layer has an MLP, by default."""
    layers = read.number("num_hidden_layers")
    return {
        "mlp_layer_types": read.get("mlp_layer_types", ["dense", *["sparse"] * (layers - 1)]),
        "routed_scaling_factor": read.get("router_scaling_factor", 2.826),
    }


def cwm_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """The first of four layers has no window, by default."""
    layers = range(read.number("num_hidden_layers"))
    usual = [SLIDING if layer % 4 else FULL for layer in layers]
    return {"layer_types": read.get("layer_types", usual)}


def minitron_entries(read: ConfigEntries) -> Mapping[str, Any]:
    return {"layer_norm_eps": read.get("norm_eps", 1e-5)}


ARCHITECTURES = {
    # Solar Open: GLM-4.5 without norms of heads
    "solaropen": Traits(
        defaults=(("rope_theta", 1_000_000.0),),
        output_bias=False,
        experts=CORRECTED,
        entries=solar_entries,
    ),
    # Hunyuan 3
    "hyv3": Traits(
        defaults=(("rope_theta", 11_158_840.0),),
        qk_norm=True,
        experts=replace(
            CORRECTED, router="router.gate", shared="shared_mlp", correction="expert_bias"
        ),
        entries=hunyuan_entries,
    ),
    # Mellum 2: Qwen 3 MoE with windows
    "mellum": Traits(qk_norm=True, experts=ExpertTraits("mlp", shares_sum_to_one=True)),
    # Youtu: latent attention, and one MLP in each layer
    "youtu": Traits(latent=True, tied_embedding=True),
    # Code World Model: Llama with windows
    "cwm": Traits(defaults=(("rope_theta", 1_000_000.0),), entries=cwm_entries),
    # Gemma: norms before attention and MLP alone, and no windows
    "gemma": replace(GEMMA2, norms=NormNames(), global_every=1, score_cap=None, logit_cap=None),
    # VaultGemma: Gemma 2 without norms behind attention and MLP
    "vaultgemma": replace(GEMMA2, norms=NormNames(mlp="pre_feedforward_layernorm")),
    # Command R: all layers see and rotate everything
    "cohere": replace(COHERE2, gguf="command-r", unrotated_global=False, global_every=1),
    # Jais 2, and Minitron: layer norms with biases, and an MLP of squared ReLU without a gate
    "jais2": Traits(activation="relu2", gated_mlp=False, layer_norm=True, norm_bias=True),
    "nemotron": Traits(
        defaults=(("partial_rotary_factor", 0.5),),
        activation="relu2",
        gated_mlp=False,
        layer_norm=True,
        norm_bias=True,
        norm_offset=1.0,
        entries=minitron_entries,
    ),
}
