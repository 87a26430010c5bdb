"""Prompts with images on a GPU: the CPU's tokens, however they are scheduled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import ImageInput, Request, Scheduler
from paceline.core.multimodal import ImageContent
from paceline.runner.attention_backend import load
from paceline.runner.batch import Coordinates
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.drafting.eagle3 import CudaEagle3
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import CudaImages
from paceline.runner.encoder_store import EncoderStore, ResidentImages
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.golden.image_sizes import (
    GEMMA,
    GEMMA4,
    GEMMA4_SMALL,
    IDS,
    LLAMA4,
    QWEN,
    SIGLIP,
    random_image,
)
from tests.gpu.eagle3 import drafter_on
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, WAYS, drive
from tests.runner.eagle3 import head_folder
from tests.runner.support import tiny

pytestmark = ON_GPU

ROWS = 64
DRAFTED = {"num_speculative_tokens": 2, "speculation": "fixed", "depth": 2}
KINDS = {
    "smolvlm": (SIGLIP, "SmolVLMForConditionalGeneration", IDS["<image>"], 15),
    "qwen2_5_vl": (QWEN, "Qwen2_5_VLForConditionalGeneration", IDS["<|image_pad|>"], 8),
    "gemma3": (GEMMA, "Gemma3ForConditionalGeneration", IDS["<image_soft_token>"], 10),
    "gemma4": (GEMMA4, "Gemma4ForConditionalGeneration", IDS["<image_soft_token>"], 8),
    "llama4": (LLAMA4, "Llama4ForConditionalGeneration", IDS["<|patch|>"], 14),
    "gemma4 small": (GEMMA4_SMALL, "Gemma4ForConditionalGeneration", IDS["<image_soft_token>"], 8),
}
IN_ALL_WAYS = ("smolvlm", "qwen2_5_vl")
WHOLE = {"disable_chunked_mm_input": True}  # positions of an image read each other
SIZES = {
    "smolvlm": [(30, 30)] * 4,
    "gemma3": [(30, 30)] * 4,
    "llama4": [(28, 28)] * 4,
}
OF_ANY_SIZE = [(16, 24), (24, 16), (16, 16), (32, 8)]  # height and width in pixels


def source(kind: str) -> Dummy:
    sizes, architecture, _, _ = KINDS[kind]
    named = {"architectures": [architecture], "model_type": kind.partition(" ")[0]}
    return Dummy(ModelConfig.of_hf({**sizes, **named}), seed=3)


def picture(kind: str, number: int, offset: int) -> ImageInput:
    (height, width), square = SIZES.get(kind, OF_ANY_SIZE)[number], KINDS[kind][3]
    content = ImageContent.of("image", {"pixels": random_image(height, width, number)})
    return ImageInput(f"image {number}", offset, (height // square) * (width // square), content)


def asked(kind: str) -> list[Request]:
    found: list[Request] = []
    for number, shown in enumerate([(0,), (0, 1), (1, 0), (2, 2, 3), ()]):
        tokens, images = [7, 30, 2 + number // 3], list[ImageInput]()
        for which in shown:
            images.append(picture(kind, which, len(tokens)))
            tokens += [KINDS[kind][2]] * images[-1].length + [40 + which]
        fields: dict[str, Any] = {"n": 2} if number == 2 else {}
        found.append(Request(f"r{number}", tokens, 9, images=tuple(images), **fields))  # pyright: ignore[reportArgumentType]
    return found


def settings(model: ModelConfig, changes: dict[str, Any]) -> dict[str, Any]:
    found = {**SETTINGS, **changes}
    if model.reads_images_whole:
        found |= {**WHOLE, "max_num_batched_tokens": max(found["max_num_batched_tokens"], 16)}
    return found


def on_cpu(kind: str) -> dict[str, Any]:
    model = Model.load(source(kind))
    scheduler = Scheduler.create(**settings(model.config, {}))
    config = scheduler.config
    kv = KVStore(model.config, config.cache.num_blocks, config.cache.block_size)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    runner = TorchRunner(model, kv, load("sdpa"), Ngram(config.speculation), *sizes)
    assert model.images is not None
    store = EncoderStore(model.images, torch.zeros(ROWS, model.images.width))
    square = model.images.square
    coordinates = Coordinates(sizes[0], square) if square else None
    runner.use_images(ResidentImages(store, coordinates, model.images.reads_itself))
    return drive(scheduler, runner, asked(kind))


def drafter_of(scheduler: Scheduler, config: ModelConfig, folder: Path) -> Drafter | None:
    """A drafter with weights, if the settings name one."""
    speculation = scheduler.config.speculation
    if speculation.proposer == "draft_model":
        drafts = Dummy(tiny(num_hidden_layers=1, vocab_size=config.vocab), seed=4)
        return CudaDraftModel(speculation, CudaModel.load(drafts, 64, torch.float32), torch.float32)
    if speculation.proposer == "eagle3":
        return drafter_on("cuda", CudaEagle3, scheduler, head_folder(folder, config))
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_cpu(kind: str, tmp_path: Path) -> None:
    expected = on_cpu(kind)
    model = CudaModel.load(source(kind), 64, torch.float32, image_rows=ROWS)
    assert model.images is not None
    model.images.rehearse(ROWS)
    ways = {**WAYS, "little room": {"max_num_encoder_input_tokens": 6, "encoder_cache_size": 7}}
    if kind not in IN_ALL_WAYS:
        ways = {"recomputed, ahead": WAYS["recomputed, ahead"]}
    ways["drafted, ahead"] = {"num_speculative_tokens": 2, "depth": 3}
    for proposer in ("draft_model", "eagle3") if kind in IN_ALL_WAYS else ():
        ways[f"drafted by {proposer}"] = {**WAYS["swapped"], **DRAFTED, "proposer": proposer}
    for way, how in ways.items():
        changes = {"depth": 1, **how}
        depth = changes.pop("depth")
        scheduler = Scheduler.create(**settings(model.config, changes))
        drafter = drafter_of(scheduler, model.config, tmp_path / way)
        runner = gpu_runner(model, scheduler, drafter=drafter)
        runner.use_images(CudaImages(model.images, model, runner.state))
        if kind in IN_ALL_WAYS:  # others capture what they use
            runner.warm("drafted" in way)
        assert drive(scheduler, runner, asked(kind), depth) == expected, way
        assert np.all(runner.state.tokens.cpu().numpy() < model.first_image_id)
