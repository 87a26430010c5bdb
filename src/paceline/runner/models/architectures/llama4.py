"""Llama 4: attention in chunks, layers that do not rotate, and MoE with a shared expert."""

from collections.abc import Mapping
from typing import Any

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertStack, ExpertTraits
from paceline.runner.models.hf_config import FULL, SLIDING
from paceline.runner.models.rope import QueryGrowth
from paceline.runner.models.traits import DecoderNames, QKNorms, TextPart, Traits
from paceline.runner.vision import llama4 as vision

LENGTH = 8192  # of a chunk, and of a step of the growth of queries


def entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Layers that rotate see a chunk, and in the others queries grow with their position."""
    layers, every = read.number("num_hidden_layers"), read.get("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % every != 0) for layer in range(layers)]
    rotates = read.get("no_rope_layers") or usual
    chunked = [kind != FULL for kind in read.get("layer_types", ())] or rotates
    growth = QueryGrowth(read.get("attn_scale", 0.1), read.get("floor_scale", LENGTH), 1)
    return {
        "no_rope_layers": rotates,
        "sliding_window": read.raw.get("attention_chunk_size", LENGTH),
        "layer_types": [SLIDING if one else FULL for one in chunked],
        "query_growth": growth if read.get("attn_temperature_tuning", True) else None,
        "intermediate_size": read.number("intermediate_size_mlp", 16_384),
        "moe_intermediate_size": read.number("intermediate_size", 8192),
    }


LLAMA4 = Traits(
    defaults=(("rope_theta", 500_000.0), ("rms_norm_eps", 1e-5), ("head_dim", 128)),
    qk_norm=True,
    qk_norms=QKNorms(bare=True),
    adjacent_pairs=True,
    gguf_defaults=(
        ("attention.sliding_window", LENGTH),
        ("query_growth", QueryGrowth(0.1, LENGTH, 1)),
    ),
    unrotated_every=4,
    global_every=4,
    chunked_windows=True,
    entries=entries,
    experts=ExpertTraits(
        "feed_forward",
        router="router",
        stack=ExpertStack(),
        shared="shared_expert",
        scores="sigmoid",
        sums_in_gguf=False,
        shares_of_inputs=True,
    ),
    names=tuple((f"mlp.{one}_proj", f"feed_forward.{one}_proj") for one in ("gate", "up", "down")),
    text_part=TextPart(
        DecoderNames("language_model.model", older_head="language_model.lm_head"),
        defaults=(),
        images=("vision_model.", "multi_modal_projector."),
        vision=vision.llama4,
    ),
)
ARCHITECTURES = {"llama4": LLAMA4}
