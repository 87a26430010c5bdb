"""Gemma: norms on both sides of attention and MLP, and layers with a window."""

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import AltUpSizes
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertStack, ExpertTraits, entry
from paceline.runner.models.hf_config import FULL, SLIDING
from paceline.runner.models.traits import AROUND, DecoderNames, TextPart, Traits
from paceline.runner.vision import gemma4, square

GEMMA2 = Traits(
    activation="gelu_pytorch_tanh",
    norms=AROUND,
    norm_offset=1.0,
    scaled_embedding=True,
    tied_embedding=True,
    global_every=2,
    score_cap=50.0,
    logit_cap=30.0,
)
# Five layers with a window for each one without.
GEMMA3 = Traits(
    activation="gelu_pytorch_tanh",
    qk_norm=True,
    norms=AROUND,
    norm_offset=1.0,
    scaled_embedding=True,
    tied_embedding=True,
    global_every=6,
    local_theta=10_000.0,
    text_part=TextPart(
        DecoderNames(
            "model.language_model",
            older="language_model.model",
            older_head="language_model.lm_head",
        ),
        defaults=(
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("max_position_embeddings", 131_072),
            ("rope_theta", 1_000_000.0),
            ("query_pre_attn_scalar", 256),
            ("sliding_window", 4096),
        ),
        images=(
            "vision_tower.",
            "multi_modal_projector.",
            "model.vision_tower.",
            "model.multi_modal_projector.",
        ),
        vision=square.gemma3,
    ),
)
IMAGES_AND_AUDIO = (
    "model.vision_tower.",
    "model.embed_vision.",
    "model.audio_tower.",
    "model.embed_audio.",
)


def gemma4_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """A file of a dense model may have numbers of experts too."""
    return {} if read.get("enable_moe_block", True) else {"num_experts": None}


UNROTATED = 1e20  # factors beyond divide the frequencies of pairs that do not rotate


def of_layers(value: int | list[int], layers: int) -> list[int]:
    """A number of a header, which may have one for each layer."""
    return value if isinstance(value, list) else [value] * layers


def gemma4_header(read: ConfigEntries) -> Mapping[str, Any]:
    """Layers with a window have key_length_swa and the like. Factors of frequencies say which part
    of a head rotates in the others."""
    kinds = [SLIDING if one else FULL for one in read.need("attention.sliding_window_pattern")]
    counts, widths = (
        of_layers(read.need(key), len(kinds))
        for key in ("attention.head_count_kv", "feed_forward_length")
    )
    by_kind = dict(zip(kinds, counts, strict=True))
    factors = read.get("rope_freqs.weight", [1.0])
    rotating = sum(one < UNROTATED for one in factors) / len(factors)
    plain, thetas = {"rope_type": "default"}, ("rope.freq_base", "rope.freq_base_swa")
    theta, local = (read.need(one) for one in thetas)
    whole = {"rope_type": "proportional", "partial_rotary_factor": rotating, "rope_theta": theta}
    return {
        "layer_types": kinds,
        "sliding_window": read.number("attention.sliding_window"),
        "head_dim": read.number("attention.key_length_swa"),
        "global_head_dim": read.number("attention.key_length"),
        "num_key_value_heads": by_kind[SLIDING],
        "num_global_key_value_heads": by_kind[FULL],
        "partial_rotary_factor": None,
        "rope_parameters": {FULL: whole, SLIDING: {**plain, "rope_theta": local}},
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] > widths[0],
        "num_kv_shared_layers": read.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": read.get("embedding_length_per_layer_input", 0),
        "final_logit_softcapping": read.get("final_logit_softcapping"),
        "num_experts": read.get("expert_count"),
        "top_k_experts": read.get("expert_used_count"),
        "moe_intermediate_size": read.get("expert_feed_forward_length"),
    }


# Norms without an offset, of values too; heads of another shape in layers without a window, whose
# values are keys in the larger models.
GEMMA4 = Traits(
    defaults=(("attention_multiplier", 1.0), ("global_head_dim", 512)),
    entries=gemma4_entries,
    header=gemma4_header,
    activation="gelu_pytorch_tanh",
    qk_norm=True,
    value_norm=True,
    norms=AROUND,
    scaled_embedding=True,
    tied_embedding=True,
    layer_scale=True,
    experts=ExpertTraits(
        "",
        router="router.proj",
        stack=ExpertStack(outputs=1),
        shared="mlp",
        beside_mlp=True,
        shares_sum_to_one=True,
    ),
    global_every=6,
    local_theta=10_000.0,
    text_part=TextPart(
        DecoderNames("model.language_model"),
        defaults=(),
        images=IMAGES_AND_AUDIO,
        vision=gemma4.gemma4,
    ),
)


SPARSE_LAYERS = 10  # unless the file says otherwise


def gemma3n_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """The first layers have sparse MLPs. Files list the width of each MLP."""
    if read.get("altup_active_idx") or not read.get("altup_correct_scale", True):
        raise ConfigError(
            f"{read.where}: only altup_active_idx = 0 and altup_correct_scale are supported"
        )
    layers = read.number("num_hidden_layers")
    sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
    usual = [0.95] * sparse + [0.0] * (layers - sparse)
    sparsity: list[float] = read.get("activation_sparsity_pattern", usual)
    return {
        "intermediate_size": entry(read, ("intermediate_size",)),
        "altup": AltUpSizes(
            read.number("altup_num_inputs", 4),
            read.number("laurel_rank", 64),
            tuple(float(one) for one in sparsity),
        ),
    }


# Several residual streams, inputs of each layer, and layers that read keys of others.
GEMMA3N = Traits(
    defaults=(
        ("attention_multiplier", 1.0),
        ("head_dim", 256),
        ("hidden_size_per_layer_input", 256),
        ("vocab_size_per_layer_input", 262_144),
        ("num_kv_shared_layers", 15),
        ("rope_theta", 1_000_000.0),
    ),
    entries=gemma3n_entries,
    activation="gelu_pytorch_tanh",
    qk_norm=True,
    value_norm=True,
    norms=AROUND,
    scaled_embedding=True,
    tied_embedding=True,
    global_every=5,
    local_theta=10_000.0,
    logit_cap=30.0,
    text_part=TextPart(
        DecoderNames("model.language_model"),
        defaults=(("vocab_size", 262_400),),
        images=IMAGES_AND_AUDIO,
    ),
)
ARCHITECTURES = {"gemma2": GEMMA2, "gemma3": GEMMA3, "gemma3n": GEMMA3N, "gemma4": GEMMA4}
