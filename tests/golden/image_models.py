"""Small models with vision towers that transformers makes, in folders as it saves them."""

import atexit
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers.models.gemma4 import image_processing_pil_gemma4

from paceline.images.fixed import CanvasProcessor
from paceline.images.processor import ProcessorFiles
from paceline.runner.models.model import Model
from paceline.runner.weights.files import open_checkpoint

# Prompts of tests are short. The published models have 70 or more embeddings of an image.
image_processing_pil_gemma4._SUPPORTED_SOFT_TOKENS = (12,)
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
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
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
LIMITS = ("input_min", "input_max", "output_min", "output_max")
TURNS = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}IMAGE{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{%- endif -%}
"""


@dataclass(frozen=True, eq=False)
class ImageFamily:
    """Models of an architecture: their sizes, image processor, and placeholder of an image.
    Families of one architecture have names of their own behind a space."""

    name: str
    sizes: dict[str, Any]
    settings: dict[str, Any]
    processor: str
    mark: str

    def inputs(self, processor: Any, ids: Sequence[int], images: Sequence[Pixels]) -> Any:
        """What transformers reads: our token ids, and the images as its processor prepares them."""
        found: dict[str, Any] = {"input_ids": torch.tensor([list(ids)])}
        is_nested = self.sizes is SIGLIP
        given = [list(images)] if is_nested else list(images)
        found |= dict(processor(given, return_tensors="pt"))
        for key in ("num_patches", "num_crops"):
            found.pop(key, None)
        if self.sizes is GEMMA:
            is_image = found["input_ids"] == self.sizes["image_token_index"]
            found["token_type_ids"] = is_image.int()
        if "image_position_ids" in found:
            found.pop("num_soft_tokens_per_image")
            is_image = found["input_ids"] == self.sizes["image_token_id"]
            found["mm_token_type_ids"] = is_image.int()
        if "image_grid_thw" in found:
            is_image = found["input_ids"] == self.sizes["image_token_id"]
            found["mm_token_type_ids"] = is_image.int()
        return found


class OwnCanvases:
    """The tiles of our processor, scaled: that of transformers needs torchvision."""

    def __init__(self, folder: Path) -> None:
        (folder / "preprocessor_config.json").write_text(json.dumps(CANVAS))
        self._ours = CanvasProcessor(ProcessorFiles.read(folder, lambda name: [IDS[name]]))

    def __call__(self, images: Sequence[Pixels], **_: Any) -> dict[str, Tensor]:
        prepared = (self._ours.prepare(Image.fromarray(image)) for image in images)
        tiles = [one.content for image in prepared for one in image.inputs]
        pixels = [torch.from_numpy(tile["pixels"].copy()) for tile in tiles if tile is not None]
        return {"pixel_values": torch.stack(pixels).permute(0, 3, 1, 2) / 255 * 2 - 1}


IN_PROMPT = "<|vision_start|><|image_pad|><|vision_end|>"
SQUARES = "Qwen2VLImageProcessorPil"
FAMILIES = {
    family.name: family
    for family in (
        ImageFamily("Idefics3", SIGLIP, TILED, "Idefics3ImageProcessorPil", "<image>"),
        ImageFamily("SmolVLM", SIGLIP, TILED, "SmolVLMImageProcessorPil", "<image>"),
        ImageFamily("Qwen2VL", QWEN2, WHOLE, SQUARES, IN_PROMPT),
        ImageFamily("Qwen2_5_VL", QWEN, WHOLE, SQUARES, IN_PROMPT),
        ImageFamily("Qwen3VL", QWEN3, WHOLE, SQUARES, IN_PROMPT),
        ImageFamily("Qwen3VLMoe", QWEN3_MOE, WHOLE, SQUARES, IN_PROMPT),
        ImageFamily("Qwen3_5", QWEN3_5, WHOLE, SQUARES, IN_PROMPT),
        ImageFamily("Gemma3", GEMMA, EXACT, "Gemma3ImageProcessorPil", "<start_of_image>"),
        ImageFamily("Gemma4", GEMMA4, BUDGET, "Gemma4ImageProcessorPil", "<image_soft_token>"),
        ImageFamily(
            "Gemma4 small", GEMMA4_SMALL, BUDGET, "Gemma4ImageProcessorPil", "<image_soft_token>"
        ),
        ImageFamily("Llama4", LLAMA4, CANVAS, "", "<|image|>"),
        ImageFamily("Llava", LLAVA, CROPPED, "CLIPImageProcessorPil", "<image>"),
        ImageFamily("Mistral3", MISTRAL, ROWS, "PixtralImageProcessorPil", "[IMG]"),
        ImageFamily("Llava Pixtral", LLAVA_PIXTRAL, ROWS, "PixtralImageProcessorPil", "[IMG]"),
        ImageFamily("InternVL", INTERN, GRID, "GotOcr2ImageProcessorPil", "<IMG_CONTEXT>"),
    )
}


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model of transformers, the folder that it was saved to, and the image processor."""

    family: ImageFamily
    theirs: Any
    folder: Path
    processor: Any

    @cache  # noqa: B019 - the models live as long as the tests
    def ours(self) -> Model:
        return Model.load(open_checkpoint(self.folder))


@cache
def image_model(name: str) -> ImageModel:
    family, architecture = FAMILIES[name], name.split(maxsplit=1)[0]
    config = getattr(transformers, f"{architecture}Config")(**json.loads(json.dumps(family.sizes)))
    kind = getattr(transformers, f"{architecture}ForConditionalGeneration")
    theirs = kind(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(len(name))
    for label, tensor in theirs.named_buffers():
        if label.rsplit(".")[-1] in LIMITS:
            tensor.fill_(0.8 if label.endswith("max") else -0.7)
        elif label.rsplit(".")[-1] in ("std_bias", "std_scale"):
            tensor.normal_(1.0, 0.3, generator=generator)
    for label, tensor in theirs.named_parameters():
        is_norm = "norm" in label and label.endswith("weight")
        spread = 0.3 if is_norm or label.endswith("bias") else tensor[0].numel() ** -0.5
        tensor.normal_(1.0 if is_norm else 0.0, spread, generator=generator)
    if architecture == "Gemma4":  # which reads such tokens as padding, where it has sampled them
        theirs.get_input_embeddings().weight[[family.sizes[key] for key in GEMMA4_MARKS]] = 0.0
    folder = Path(mkdtemp(prefix=f"paceline-{architecture}-"))
    atexit.register(rmtree, folder)
    theirs.save_pretrained(folder)
    if family.sizes is QWEN3_MOE:
        as_published(folder / "model.safetensors")
    if not family.processor:
        processor: Any = OwnCanvases(folder)
    else:
        processor = getattr(transformers, family.processor)(**family.settings)
        processor.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    template = TURNS.replace("IMAGE", family.mark)
    settings = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ImageModel(family, theirs, folder, processor)


def as_published(file: Path) -> None:
    """Put the outputs of all experts into the last dimension, as the published files have them."""
    tensors = load_file(file)
    experts = {name: one.mT.contiguous() for name, one in tensors.items() if ".experts." in name}
    save_file({**tensors, **experts}, file, {"format": "pt"})


def tokenizer() -> Tokenizer:
    """A token for each byte, and the marks of images."""
    found = Tokenizer(models.BPE({word: id for id, word in enumerate(BYTES)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return found


def random_image(height: int, width: int, seed: int = 0) -> Pixels:
    """Coarse random colours: neighbours are alike, as in a photograph."""
    draw = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    smooth = np.kron(draw, np.ones((8, 8, 1)))[:height, :width]
    return smooth.astype(np.uint8)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
