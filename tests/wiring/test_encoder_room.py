"""Sizes of the encoder suffice for the images of a model, which is shown by running one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core.errors import RequestFailed
from paceline.core.multimodal import ImagePrompt
from paceline.engine.api import SamplingParams
from paceline.llm import LLM
from paceline.wiring.assembly import with_encoder_room
from tests.golden.image_models import FAMILIES, image_model
from tests.golden.image_sizes import random_image
from tests.images.support import encode, reader

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


class Reader:
    largest = 700

    def read(self, token_ids: Sequence[int], images: Sequence[Any]) -> ImagePrompt:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("settings", "raised"),
    [
        ({}, {"max_num_encoder_input_tokens": 700, "encoder_cache_size": 700}),
        ({"encoder_cache_size": 900}, {"max_num_encoder_input_tokens": 700}),
        ({"max_num_batched_tokens": 700}, {}),
        ({"enable_chunked_prefill": False}, {}),
        ({"max_model_len": 300}, {}),
        (
            {"max_model_len": 600},
            {"max_num_encoder_input_tokens": 600, "encoder_cache_size": 600},
        ),
    ],
)
def test_sizes_that_are_not_given_suffice_for_the_largest_image(
    settings: dict[str, Any], raised: dict[str, Any]
) -> None:
    assert with_encoder_room(settings, Reader(), 512, 2048) == settings | raised
    assert with_encoder_room(settings, None, 512, 2048) == settings


def test_the_largest_image_of_a_model() -> None:
    assert reader("SmolVLM").largest == 4
    assert reader("Qwen2_5_VL").largest == 2048 // 64


def shown(name: str, images: int) -> str:
    return "a" + "".join(f"{FAMILIES[name].mark}b{number}" for number in range(images))


def expected(name: str, images: list[np.ndarray]) -> list[int]:
    """The tokens of transformers."""
    model = image_model(name)
    prompt = reader(name).read(encode(shown(name, len(images))), images)
    ids = torch.tensor([prompt.token_ids])
    if name == "Qwen2_5_VL":
        theirs = dict(model.processor(images, return_tensors="pt"))
        theirs["mm_token_type_ids"] = (ids == model.theirs.config.image_token_id).int()
    else:
        contents = [image.content for image in prompt.images]
        tiles = [torch.from_numpy(one["pixels"].copy()) for one in contents if one is not None]
        scaled = torch.stack(tiles).permute(0, 3, 1, 2) / 255
        theirs = {"pixel_values": (scaled[None] - 0.5) / 0.5}
    found = model.theirs.generate(input_ids=ids, max_new_tokens=8, do_sample=False, **theirs)
    return found[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", ["SmolVLM", "Qwen2_5_VL"])
def test_prompts_with_images_run_as_in_transformers(name: str) -> None:
    """Also where a step computes less than an image has, and the cache has room for one."""
    pictures = [[random_image(40, 56, seed) for seed in some] for some in ((1,), (2, 1), (3,))]
    settings: dict[str, Any] = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "depth": 2}
    with LLM(str(image_model(name).folder), device="cpu", kv_cache_gib=0.01, **settings) as llm:
        prompts = [
            {"prompt": shown(name, len(some)), "multi_modal_data": {"image": some}}
            for some in pictures
        ]
        for _ in range(2):  # the second time, prompts are in the prefix cache
            got = llm.generate(prompts, GREEDY)
            assert [list(one.outputs[0].token_ids) for one in got] == [
                expected(name, some) for some in pictures
            ]
        unmarked = {"prompt": "a", "multi_modal_data": {"image": pictures[0]}}
        with pytest.raises(RequestFailed, match="1 images, but 0 marks"):
            llm.generate(unmarked, GREEDY, raise_on_error=True)
