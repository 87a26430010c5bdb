"""Sizes of small models with vision towers, settings of their image processors, and images."""

from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [height, width, channels]

TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>"),
    *("<global-img>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *TILES,
    *("<img>", "</img>", "<IMG_CONTEXT>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "<unused>"),  # an even number, for two ranks
    *("<|image_start|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>"),
    *("<|patch|>", "<|image_end|>"),
]
IDS = {word: 256 + place for place, word in enumerate(SPECIAL)}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 256 + len(SPECIAL),
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
SIGLIP: dict[str, Any] = {
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "image_size": 30,  # of which two pixels belong to no patch
        "patch_size": 7,
    },
    "scale_factor": 2,
    "image_token_id": IDS["<image>"],
}
QWEN: dict[str, Any] = {
    "text_config": {
        **TEXT,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [1, 1, 2],
        },
    },
    "vision_config": {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 40,
        "patch_size": 4,
        "window_size": 16,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [1],
    },
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}
QWEN2: dict[str, Any] = {
    **QWEN,
    "vision_config": {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 4,
        "mlp_ratio": 2,
        "patch_size": 4,
    },
}
QWEN3: dict[str, Any] = {
    **QWEN,
    "text_config": {
        **TEXT,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 40,
        "patch_size": 4,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
    },
}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "text_config": {
        **QWEN3["text_config"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    "tie_word_embeddings": False,
}
QWEN3_5: dict[str, Any] = {
    **QWEN3,
    "text_config": {
        **TEXT,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "rope_parameters": {
            **QWEN3["text_config"]["rope_parameters"],
            "partial_rotary_factor": 0.5,
        },
    },
    "vision_config": {
        key: value
        for key, value in QWEN3["vision_config"].items()
        if key != "deepstack_visual_indexes"
    },
}
SQUARE: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 28,
    "patch_size": 7,
}
LLAVA: dict[str, Any] = {
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {"model_type": "clip_vision_model", **SQUARE},
    "image_token_index": IDS["<image>"],
    "image_seq_length": 16,
}
INTERN: dict[str, Any] = {
    "text_config": {"model_type": "qwen2", **TEXT},
    "vision_config": {**SQUARE, "image_size": [24, 24], "patch_size": [4, 4]},
    "image_token_id": IDS["<IMG_CONTEXT>"],
    "image_seq_length": 9,
}
GEMMA: dict[str, Any] = {
    "text_config": {
        **TEXT,
        "num_hidden_layers": 3,
        "head_dim": 8,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 8,
    },
    "vision_config": {**SQUARE, "image_size": 30, "patch_size": 5, "vision_use_head": False},
    "mm_tokens_per_image": 9,
    "boi_token_index": IDS["<start_of_image>"],
    "eoi_token_index": IDS["<end_of_image>"],
    "image_token_index": IDS["<image_soft_token>"],
}
GEMMA4: dict[str, Any] = {
    "text_config": {
        **GEMMA["text_config"],
        "num_hidden_layers": 4,
        "layer_types": [*["sliding_attention", "full_attention"] * 2],
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 20,
        "pad_token_id": 0,
        "use_bidirectional_attention": "vision",
    },
    "vision_config": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 40,
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "position_embedding_size": 32,
        "standardize": True,
    },
    "audio_config": None,
    "boi_token_id": IDS["<start_of_image>"],
    "eoi_token_id": IDS["<end_of_image>"],
    "image_token_id": IDS["<image_soft_token>"],
    "video_token_id": IDS["<unused>"],
    "audio_token_id": IDS["<unused>"],
}
GEMMA4_MARKS = ("image_token_id", "video_token_id", "audio_token_id")
# Images are causal, layers have inputs of their own, and linears of the tower limits.
GEMMA4_SMALL: dict[str, Any] = {
    **GEMMA4,
    "text_config": {
        **GEMMA4["text_config"],
        "num_hidden_layers": 6,
        "layer_types": [*["sliding_attention", "full_attention"] * 3],
        "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": TEXT["vocab_size"],
        "num_kv_shared_layers": 2,
        "enable_moe_block": False,
        "pad_token_id": 3,
        "use_bidirectional_attention": None,
    },
    "vision_config": {
        **GEMMA4["vision_config"],
        "use_clipped_linears": True,
        "standardize": False,
    },
}
LLAMA4: dict[str, Any] = {
    "text_config": {
        **TEXT,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "intermediate_size_mlp": 40,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 16,
        "floor_scale": 8,
        "attn_scale": 0.3,
    },
    "vision_config": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "image_size": 28,
        "patch_size": 7,
        "projector_input_dim": 24,
        "projector_output_dim": 24,
        "vision_output_dim": 24,
    },
    "boi_token_index": IDS["<|image_start|>"],
    "eoi_token_index": IDS["<|image_end|>"],
    "image_token_index": IDS["<|patch|>"],
}
PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 64,
    "patch_size": 4,
    "head_dim": 8,
    "hidden_act": "silu",
}
MISTRAL: dict[str, Any] = {
    "text_config": {"model_type": "mistral", "head_dim": 8, **TEXT},
    "vision_config": PIXTRAL,
    "image_token_index": IDS["[IMG]"],
    "spatial_merge_size": 2,
}
LLAVA_PIXTRAL: dict[str, Any] = {
    "text_config": {"model_type": "mistral", "head_dim": 8, **TEXT},
    "vision_config": {**PIXTRAL, "patch_size": 8},
    "image_token_index": IDS["[IMG]"],
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}
TILED = {"size": {"longest_edge": 60}, "max_image_size": {"longest_edge": 30}}
WHOLE = {"patch_size": 4, "merge_size": 2, "min_pixels": 256, "max_pixels": 2048}
CROPPED = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
EXACT = {"size": {"height": 30, "width": 30}}
ROWS = {"size": {"longest_edge": 48}, "patch_size": {"height": 8, "width": 8}}
BUDGET = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 12}
CANVAS = {"size": {"height": 28, "width": 28}, "max_patches": 4}
GRID = {"size": {"height": 24, "width": 24}, "crop_to_patches": True, "max_patches": 6}


def random_image(height: int, width: int, seed: int = 0) -> Pixels:
    """Coarse random colours: neighbours are alike, as in a photograph."""
    draw = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    smooth = np.kron(draw, np.ones((8, 8, 1)))[:height, :width]
    return smooth.astype(np.uint8)
