"""Prompts with images under the real scheduler: every way of scheduling gives the same tokens, and
they are those of transformers."""

from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.images.processor import image_input
from paceline.runner.attention_backend import load
from paceline.runner.batch import Coordinates
from paceline.runner.encoder_store import EncoderStore, ResidentImages
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.files import open_checkpoint
from tests.golden.image_models import image_model
from tests.golden.image_sizes import IDS, Pixels, random_image
from tests.runner.drafters import drafter_for
from tests.runner.driving import SETTINGS, WAYS, drive
from tests.runner.parallel.ranks import tokens_of_two_ranks

QWEN_SIZES = [(16, 24), (24, 16), (16, 16), (32, 8)]
SIZES = {"SmolVLM": [(30, 30)] * 4, "Gemma3": [(30, 30)] * 4, "Llama4": [(28, 28)] * 4}
SIZES |= dict.fromkeys(("Qwen2_5_VL", "Qwen3VL", "Qwen3_5", "Gemma4", "Gemma4 small"), QWEN_SIZES)
SQUARES = {"SmolVLM": 15, "Gemma3": 10, "Llama4": 14}  # 8 in all others
MARKS = dict.fromkeys(SIZES, IDS["<|image_pad|>"]) | {
    "SmolVLM": IDS["<image>"],
    "Llama4": IDS["<|patch|>"],
    **dict.fromkeys(("Gemma3", "Gemma4", "Gemma4 small"), IDS["<image_soft_token>"]),
}
NAMES = ["SmolVLM", "Qwen2_5_VL"]
TIGHT_ENCODER = {"max_num_encoder_input_tokens": 6, "encoder_cache_size": 7}
DRAFTED = {"num_speculative_tokens": 3, "speculation": "fixed", "max_num_batched_tokens": 8}
IMAGE_WAYS: dict[str, dict[str, Any]] = {
    **WAYS,
    "little room": TIGHT_ENCODER,
    "little room, tight, ahead": {**TIGHT_ENCODER, "num_blocks": 17, "depth": 2},
    "little room, swapped": {**TIGHT_ENCODER, **WAYS["swapped, ahead"]},
    "in one piece": {"disable_chunked_mm_input": True, "max_num_batched_tokens": 16},
    "whole prompts": {"enable_chunked_prefill": False},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
    "drafted by a model": {**DRAFTED, "proposer": "draft_model"},
    "drafted by a head, tight": {**DRAFTED, "proposer": "eagle3", "num_blocks": 17},
}


def images(name: str) -> list[Pixels]:
    return [random_image(*size, seed) for seed, size in enumerate(SIZES[name])]


def asked(name: str) -> list[Request]:
    """Several requests with the same images, at other places and in another order."""
    found: list[Request] = []
    given = images(name)
    square = SQUARES.get(name, 8)
    for number, shown in enumerate([(0,), (0, 1), (1, 0), (2, 2, 3), ()]):
        tokens, inputs = [7, 30, 2 + number // 3], []
        for which in shown:
            pixels = given[which]
            length = (pixels.shape[0] // square) * (pixels.shape[1] // square)
            inputs.append(image_input(pixels, len(tokens), length))
            tokens += [MARKS[name]] * length + [40 + which]
        fields: dict[str, Any] = {"n": 2} if number == 2 else {}
        found.append(Request(f"r{number}", tokens, 9, images=tuple(inputs), **fields))
    return found


def runner_with_images(model: Model, scheduler: Scheduler) -> TorchRunner:
    config = scheduler.config
    kv = KVStore(model.config, config.cache.num_blocks, config.cache.block_size)
    slots = config.step.max_num_seqs
    sizes = slots, config.step.max_model_len
    drafter = drafter_for(model, config.speculation)
    runner = TorchRunner(model, kv, load("paged"), drafter, *sizes)
    runner.reserve_host(config.preemption.swap_space)
    assert model.images is not None
    square = model.images.square
    store = EncoderStore(model.images, torch.zeros(config.encoder_capacity, model.images.width))
    coordinates = Coordinates(slots, square) if square else None
    runner.use_images(ResidentImages(store, coordinates, model.images.reads_itself))
    assert runner.capabilities.images
    return runner


def outputs(model: Model, requests: list[Request], depth: int = 1, **changes: Any) -> Any:
    scheduler = Scheduler.create(**{**SETTINGS, **changes})
    return drive(scheduler, runner_with_images(model, scheduler), requests, depth), scheduler


@pytest.mark.parametrize("way", IMAGE_WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_do_not_depend_on_the_schedule(name: str, way: str) -> None:
    model, requests = image_model(name).ours(), asked(name)
    got, scheduler = outputs(model, requests, **IMAGE_WAYS[way])
    assert got == plain_outputs(name)
    assert scheduler.stats.encoder_hits
    if "tight" in way or "swapped" in way:
        assert scheduler.stats.preemptions, "the pool was not tight"


WHOLE = {"disable_chunked_mm_input": True, "max_num_batched_tokens": 16}
OTHER_WAYS = {
    "ahead": {"depth": 3},
    "tight, ahead": {"num_blocks": 17, "depth": 2},
    "swapped, ahead": WAYS["swapped, ahead"],
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
}


@pytest.mark.parametrize("name", ["Gemma4", "Gemma4 small", "Llama4"])
def test_tokens_where_layers_see_less_do_not_depend_on_the_schedule(name: str) -> None:
    """Layers with windows or chunks, of which some read the positions of an image as a whole."""
    model, requests = image_model(name).ours(), asked(name)
    for way, changes in OTHER_WAYS.items():
        got, scheduler = outputs(model, requests, **{**WHOLE, **changes})
        assert got == plain_outputs(name), way
        assert scheduler.stats.prefix_hits
        assert scheduler.stats.preemptions or "num_blocks" not in changes, way


PLAIN: dict[str, Any] = {}


def plain_outputs(name: str) -> Any:
    """Of one request after the other, without any sharing."""
    if name not in PLAIN:
        PLAIN[name] = {}
        for request in asked(name):
            alone, _ = outputs(image_model(name).ours(), [request], enable_prefix_caching=False)
            PLAIN[name] |= alone
    return PLAIN[name]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_transformers(name: str) -> None:
    model, request, given = image_model(name), asked(name)[1], images(name)[:2]
    ids = torch.tensor([request.prompt.tolist()])
    if name == "Qwen2_5_VL":
        kinds = (ids == MARKS[name]).int()
        theirs = dict(model.processor(given, return_tensors="pt"), mm_token_type_ids=kinds)
    else:
        scaled = torch.stack([torch.from_numpy(one) for one in given]).permute(0, 3, 1, 2) / 255
        theirs = {"pixel_values": (scaled[None] - 0.5) / 0.5}
    found = model.theirs.generate(input_ids=ids, max_new_tokens=9, do_sample=False, **theirs)
    assert plain_outputs(name)["r1"] == found[0, ids.shape[1] :].tolist()


def test_rank_0_encodes_images_for_all() -> None:
    checkpoint = open_checkpoint(image_model("Qwen2_5_VL").folder)
    due, _ = outputs(Model.load(checkpoint), asked("Qwen2_5_VL")[:2])

    def rank(group: RankGroup, scheduler: Scheduler) -> TorchRunner:
        model = Model.load(checkpoint, group=group)
        assert model.images is not None
        assert model.images.encodes == group.is_first
        return runner_with_images(model, scheduler)

    assert tokens_of_two_ranks(rank, asked("Qwen2_5_VL")[:2], SETTINGS, 2)[0] == due
