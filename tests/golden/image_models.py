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
from tests.golden.image_sizes import (
    BUDGET,
    CANVAS,
    CROPPED,
    EXACT,
    GEMMA,
    GEMMA4,
    GEMMA4_MARKS,
    GEMMA4_SMALL,
    GRID,
    IDS,
    INTERN,
    LLAMA4,
    LLAVA,
    LLAVA_PIXTRAL,
    MISTRAL,
    QWEN,
    QWEN2,
    QWEN3,
    QWEN3_5,
    QWEN3_MOE,
    ROWS,
    SIGLIP,
    SPECIAL,
    TILED,
    WHOLE,
    Pixels,
)

# Prompts of tests are short. The published models have 70 or more embeddings of an image.
image_processing_pil_gemma4._SUPPORTED_SOFT_TOKENS = (12,)
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
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


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
