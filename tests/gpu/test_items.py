"""Prompts with images on a GPU: the CPU's tokens, however they are scheduled."""

from typing import Any

import numpy as np
import pytest
import torch

from paceline import Item, Request, Scheduler
from paceline.core.item import ItemContent
from paceline.runner.attention.backend import load
from paceline.runner.encoder_store import EncoderStore
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.resident_items import ResidentItems
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.golden.image_models import IDS, SIGLIP, random_image
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, WAYS, drive

try:
    from paceline.runner.cuda.items import CudaItems
    from paceline.runner.cuda.model import CudaModel
    from tests.gpu.runners import gpu_runner
except ImportError:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = ON_GPU

LENGTH, SIDE = 4, 30  # embeddings of an image, and its pixels along each side
ROWS = 64


def source() -> Dummy:
    kinds = {"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm"}
    return Dummy(ModelConfig.of_hf({**SIGLIP, **kinds}), seed=3)


def picture(number: int, offset: int) -> Item:
    content = ItemContent.of("image", {"pixels": random_image(SIDE, SIDE, number)})
    return Item(f"image {number}", offset, LENGTH, content)


def asked() -> list[Request]:
    found: list[Request] = []
    for number, shown in enumerate([(0,), (0, 1), (1, 0), (2, 2, 3), ()]):
        tokens, items = [7, 30, 2 + number // 3], list[Item]()
        for which in shown:
            items.append(picture(which, len(tokens)))
            tokens += [IDS["<image>"]] * LENGTH + [40 + which]
        found.append(Request(f"r{number}", tokens, 9, items=tuple(items)))  # pyright: ignore[reportArgumentType]
    return found


def on_cpu() -> dict[str, Any]:
    model, scheduler = Model.load(source()), Scheduler.create(**SETTINGS)
    config = scheduler.config
    kv = KVStore(model.config, config.cache.num_blocks, config.cache.block_size)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    runner = TorchRunner(model, kv, load("sdpa"), Ngram(config.speculation), *sizes)
    assert model.images is not None
    store = EncoderStore(model.images, torch.zeros(ROWS, model.images.width))
    runner.use_items(ResidentItems(store))
    return drive(scheduler, runner, asked())


def test_tokens_are_those_of_the_cpu() -> None:
    expected = on_cpu()
    model = CudaModel.load(source(), 64, torch.float32, item_rows=ROWS)
    assert model.images is not None
    ways = {**WAYS, "little room": {"max_num_encoder_input_tokens": 4, "encoder_cache_size": 5}}
    ways["drafted, ahead"] = {"num_speculative_tokens": 2, "depth": 3}
    for way, how in ways.items():
        changes = {"depth": 1, **how}
        depth = changes.pop("depth")
        scheduler = Scheduler.create(**{**SETTINGS, **changes})
        runner = gpu_runner(model, scheduler)
        runner.use_items(CudaItems(model.images, model, runner.state))
        runner.warm("drafted" in way)
        assert drive(scheduler, runner, asked(), depth) == expected, way
        assert np.all(runner.state.tokens.cpu().numpy() < model.first_item_id)
