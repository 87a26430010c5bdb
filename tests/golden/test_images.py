"""Prompts with images through `LLM`, compared with the greedy tokens of transformers."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image

from paceline import LLM
from tests.golden.image_models import FAMILIES, ImageModel, image_model
from tests.golden.image_sizes import Pixels, random_image
from tests.images.support import encode, file_of

STEPS = 10
LONG = {"Gemma3": 40, "Gemma4": 40, "Gemma4 small": 40, "Llama4": 40}
# Chunks are shorter than prompts, and there is no room for all sequences at once.
TIGHT: dict[str, Any] = {
    "max_model_len": 128,
    "block_size": 4,
    "num_gpu_blocks_override": 40,
    "max_num_batched_tokens": 24,
    "max_num_seqs": 4,
}
# Layers with windows leave room for others.
OWN_ROOM = {
    "Gemma3": {"max_model_len": 88, "num_gpu_blocks_override": 38},
    "Gemma4": {"max_model_len": 88, "num_gpu_blocks_override": 30},
    "Gemma4 small": {"max_model_len": 88, "num_gpu_blocks_override": 30},
    "Llama4": {"max_model_len": 104, "num_gpu_blocks_override": 59},
    "Mistral3": {"max_model_len": 100, "num_gpu_blocks_override": 28},
    "Llava Pixtral": {"max_model_len": 100, "num_gpu_blocks_override": 28},
}
PICTURES = [random_image(40, 40), random_image(24, 56, seed=1), random_image(60, 30, seed=2)]


@contextmanager
def llm(model: ImageModel, **settings: Any) -> Iterator[LLM]:
    with LLM(str(model.folder), device="cpu", **TIGHT | settings) as found:
        yield found


def prompt_of(model: ImageModel, images: Sequence[Pixels], say: str) -> dict[str, Any]:
    """Text before, between and behind images."""
    text = say + "".join(f"{model.family.mark} and " for _ in images) + "?"
    return {"prompt": text, "multi_modal_data": {"image": list(images)}}


def their_tokens(
    model: ImageModel, ids: Sequence[int], images: Sequence[Pixels], steps: int = STEPS
) -> list[int]:
    """What transformers generates from our prompt."""
    given = model.family.inputs(model.processor, ids, images)
    found = model.theirs.generate(**given, max_new_tokens=steps, do_sample=False)
    return found[0, len(ids) :].tolist()


@pytest.mark.parametrize("name", [one for one in FAMILIES if one != "Idefics3"])
def test_tokens_are_those_of_transformers_in_chunks_and_after_preemption(name: str) -> None:
    model = image_model(name)
    shown = [PICTURES[:1], PICTURES[1:], PICTURES[:1], PICTURES[::2], PICTURES[1:2]]
    prompts = [prompt_of(model, images, f"{place}: ") for place, images in enumerate(shown)]
    steps = LONG.get(name, STEPS)
    with llm(model, **OWN_ROOM.get(name, {})) as ours:
        outputs = ours.generate(
            prompts, max_tokens=steps, temperature=0, ignore_eos=True, raise_on_error=True
        )
        report = ours.get_metrics()
    for images, output in zip(shown, outputs, strict=True):
        expected = their_tokens(model, output.prompt_token_ids, images, steps)
        assert list(output.outputs[0].token_ids) == expected
    assert report.counters["num_preemptions"] > 0


@pytest.mark.parametrize("name", ["Idefics3", "Qwen2_5_VL"])
def test_an_image_is_encoded_once_and_prefixes_with_it_are_shared(name: str) -> None:
    model, image = image_model(name), PICTURES[0]
    prompts = [prompt_of(model, [image], say) for say in ("one: ", "another: ", "one: ")]
    with llm(model) as ours:
        outputs = [
            ours.generate(one, max_tokens=STEPS, temperature=0, ignore_eos=True, progress=False)[0]
            for one in prompts
        ]
        counters = ours.get_metrics().counters
    first, other, again = outputs
    assert first.outputs[0].token_ids == again.outputs[0].token_ids
    assert list(other.outputs[0].token_ids) == their_tokens(model, other.prompt_token_ids, [image])
    assert again.usage.cached_tokens > 0
    parts = 5 if name == "Idefics3" else 1  # tiles and the whole image
    assert counters["mm_cache_queries"] - counters["mm_cache_hits"] == parts


def test_images_of_a_conversation() -> None:
    model = image_model("SmolVLM")
    file = file_of(PICTURES[0])
    url = f"data:image/png;base64,{b64encode(file).decode()}"
    forms: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "image": Image.fromarray(PICTURES[0])},
        {"type": "image_pil", "image_pil": PICTURES[0]},
    ]
    text = {"type": "text", "text": "what is it?"}
    chats = [[{"role": "user", "content": [form, text]}] for form in forms]
    with llm(model) as ours:
        found = ours.chat(chats, max_tokens=2, temperature=0, raise_on_error=True)
        (refused,) = ours.generate({"prompt": "<image>", "multi_modal_data": {"image": b"?"}})
        plain = ours.generate("no image", max_tokens=2, raise_on_error=True)
    assert len({output.prompt_token_ids for output in found}) == 1
    assert len({output.outputs[0].token_ids for output in found}) == 1
    assert found[0].prompt_token_ids[:6] == tuple(
        encode("<|im_start|>user<fake_token_around_image>")
    )
    assert "in no known format" in refused.error
    assert plain[0].outputs[0].token_ids
