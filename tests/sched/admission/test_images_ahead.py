"""Images of residents: needed when a chunk reaches them, held until they are passed."""

from random import Random
from typing import Any

import numpy as np
import pytest

from paceline import ImageInput, Request, Scheduler, StepResult
from paceline.core.multimodal import ImageContent
from paceline.core.plan import Plan
from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.sched.admission.images_ahead import ENCODED_EMBEDDINGS, HELD_EMBEDDINGS, ImagesAhead
from paceline.sched.admission.rows import Used
from paceline.sched.slots import SlotTable
from paceline.sched.stats import Stats


def scheduler_of(**settings: Any) -> Scheduler:
    usual = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 128}
    usual |= {"max_num_encoder_input_tokens": 16, "encoder_cache_size": 16}
    return Scheduler.create(**(usual | {"num_blocks": 64, "block_size": 4} | settings))


def ask(name: str, tokens: int, *images: ImageInput, **fields: Any) -> Request:
    first = ord(name[-1]) * 100  # no two begin alike
    return Request(name, range(first, first + tokens), images=images, **fields)  # pyright: ignore[reportArgumentType]


def commit(scheduler: Scheduler, plan: Plan) -> None:
    due = zip(plan.rows.labels, plan.rows.samples.tolist(), strict=True)
    scheduler.commit(plan, StepResult.of(plan, {name: [1] for name, one in due if one}), now=0.0)
    scheduler.check()


def step(scheduler: Scheduler) -> dict[str, Any]:
    plan = scheduler.plan(now=0.0)
    scheduler.check()
    commit(scheduler, plan)
    told = plan.to_dict()
    return {name: told[name] for name in ("tokens", "encoder")}


def cached(scheduler: Scheduler, *names: str) -> list[bool]:
    return [name in scheduler.state.images.cache for name in names]


def held(scheduler: Scheduler) -> int:
    return scheduler.state.images.cache.held


# -- when images are needed ----------------------------------------------------


def test_an_image_is_encoded_when_a_chunk_reaches_it_and_dropped_when_it_is_passed() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 30, ImageInput("cat", 10, 10)), now=0.0)
    assert step(scheduler) == {"tokens": {"a": 8}, "encoder": {}}
    assert step(scheduler) == {"tokens": {"a": 8}, "encoder": {"a": [0]}}
    assert held(scheduler) == 10
    assert step(scheduler) == {"tokens": {"a": 8}, "encoder": {}}
    assert held(scheduler) == 0
    assert cached(scheduler, "cat") == [True]


def test_a_chunk_ends_before_an_image_without_budget() -> None:
    scheduler = scheduler_of(max_num_encoder_input_tokens=6)
    scheduler.submit(ask("a", 16, ImageInput("cat", 1, 4), ImageInput("dog", 6, 4)), now=0.0)
    assert step(scheduler) == {"tokens": {"a": 6}, "encoder": {"a": [0]}}
    assert step(scheduler) == {"tokens": {"a": 10}, "encoder": {"a": [1]}}


def test_a_chunk_ends_before_an_image_without_room_and_others_use_the_rest() -> None:
    scheduler = scheduler_of(encoder_cache_size=6)
    scheduler.submit(ask("a", 30, ImageInput("cat", 12, 6)), now=0.0)
    scheduler.submit(ask("b", 30, ImageInput("dog", 4, 6)), now=0.0)
    assert step(scheduler) == {"tokens": {"a": 16}, "encoder": {"a": [0]}}
    assert scheduler.why()["b"] == "for the token budget"
    assert step(scheduler) == {"tokens": {"a": 14, "b": 2}, "encoder": {}}
    assert step(scheduler) == {"tokens": {"a": 1, "b": 15}, "encoder": {"b": [0]}}


def test_what_waits_for_the_encoder_says_so() -> None:
    scheduler = scheduler_of(encoder_cache_size=6, max_num_batched_tokens=20)
    scheduler.submit(ask("a", 30, ImageInput("cat", 12, 6)), now=0.0)
    scheduler.submit(ask("b", 30, ImageInput("dog", 0, 6)), now=0.0)
    scheduler.submit(ask("c", 30, ImageInput("cow", 3, 6)), now=0.0)
    first = scheduler.plan(now=0.0)
    assert first.to_dict()["tokens"] == {"a": 20}
    second = scheduler.plan(now=0.0)  # the first one still holds its image
    assert second.to_dict()["tokens"] == {"a": 10}
    assert scheduler.why()["b"] == "for room in the encoder cache"
    assert "waits for room in the encoder cache" in scheduler.why()["c"]
    commit(scheduler, first)
    commit(scheduler, second)
    assert step(scheduler)["encoder"] == {"b": [0]}


def test_a_resident_that_waits_for_the_encoder_says_so() -> None:
    scheduler = scheduler_of(encoder_cache_size=6)
    scheduler.submit(ask("a", 12, ImageInput("cat", 1, 6), ImageInput("dog", 12 - 5, 5)), now=0.0)
    plan = scheduler.plan(now=0.0)
    assert plan.to_dict()["tokens"] == {"a": 7}
    assert len(scheduler.plan(now=0.0).rows) == 0
    assert "room in the encoder cache" in scheduler.why()["a"]
    commit(scheduler, plan)
    assert step(scheduler) == {"tokens": {"a": 5}, "encoder": {"a": [1]}}


# -- sharing ------------------------------------------------------------------


def test_a_content_is_encoded_once_for_all_that_need_it() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=64, max_num_encoder_input_tokens=4)
    for name in "abc":
        scheduler.submit(ask(name, 10, ImageInput("cat", 2, 4)), now=0.0)
    assert step(scheduler) == {"tokens": dict.fromkeys("abc", 10), "encoder": {"a": [0]}}
    scheduler.submit(ask("d", 10, ImageInput("cat", 0, 4), ImageInput("cat", 5, 4)), now=0.0)
    assert step(scheduler)["encoder"] == {}
    stats = scheduler.stats
    assert (stats.encoder_queries, stats.encoder_hits, stats.encoded) == (5, 4, 4)


def test_a_prefix_found_behind_an_image_needs_it_no_more() -> None:
    scheduler = scheduler_of(encoder_cache_size=8)
    scheduler.submit(ask("a", 14, ImageInput("cat", 1, 6), max_tokens=1), now=0.0)
    step(scheduler)
    scheduler.state.images.cache.clear()
    scheduler.submit(ask("a", 14, ImageInput("cat", 1, 6), max_tokens=1), now=0.0)
    assert step(scheduler) == {"tokens": {"a": 2}, "encoder": {}}


def test_a_prefix_that_ends_inside_of_an_image_needs_it() -> None:
    scheduler = scheduler_of()
    scheduler.submit(ask("a", 14, ImageInput("cat", 1, 9), max_tokens=1), now=0.0)
    step(scheduler)
    scheduler.state.images.cache.clear()
    shorter = Request(
        "b", ask("a", 14).prompt[:10], images=(ImageInput("cat", 1, 9),), max_tokens=1
    )
    scheduler.submit(shorter, now=0.0)
    assert step(scheduler) == {"tokens": {"b": 2}, "encoder": {"b": [0]}}


def test_a_family_shares_an_image_at_the_end_of_its_prompt() -> None:
    scheduler = scheduler_of(encoder_cache_size=4, disable_chunked_mm_input=True)
    scheduler.submit(ask("a", 10, ImageInput("cat", 6, 4), n=3, max_tokens=2), now=0.0)
    assert step(scheduler) == {"tokens": {"0_a": 9}, "encoder": {"0_a": [0]}}
    assert step(scheduler)["tokens"] == dict.fromkeys(("0_a", "1_a", "2_a"), 1)
    assert held(scheduler) == 0


# -- leaving ------------------------------------------------------------------


def test_an_abort_drops_what_was_held() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 30, ImageInput("cat", 2, 12)), now=0.0)
    step(scheduler)
    assert held(scheduler) == 12
    scheduler.abort("a", now=0.0)
    scheduler.check()
    assert held(scheduler) == 0
    assert cached(scheduler, "cat") == [True]


def test_what_a_failed_step_was_to_encode_is_not_kept() -> None:
    scheduler = scheduler_of()
    scheduler.submit(ask("a", 10, ImageInput("cat", 2, 4)), now=0.0)
    plan = scheduler.plan(now=0.0)
    scheduler.retry(plan, now=0.0)
    scheduler.check()
    assert cached(scheduler, "cat") == [False]
    assert step(scheduler)["encoder"] == {"a": [0]}


def test_the_images_of_a_row_that_failed_are_not_kept() -> None:
    scheduler = scheduler_of()
    scheduler.submit(ask("a", 10, ImageInput("cat", 2, 4)), now=0.0)
    scheduler.submit(ask("b", 6, ImageInput("dog", 2, 3)), now=0.0)
    plan = scheduler.plan(now=0.0)
    result = StepResult.of(plan, {"b": [1]}, failed={"a": "no numbers"})
    scheduler.commit(plan, result, now=0.0)
    assert cached(scheduler, "cat", "dog") == [False, True]


def test_what_a_failed_row_encoded_is_not_kept_if_its_request_was_aborted() -> None:
    scheduler = scheduler_of()
    scheduler.submit(ask("a", 10, ImageInput("cat", 2, 4)), now=0.0)
    plan = scheduler.plan(now=0.0)
    scheduler.abort("a", now=0.0)
    result = StepResult.of(plan, {}, failed={"a": "no numbers"})
    scheduler.commit(plan, result, now=0.0)
    assert cached(scheduler, "cat") == [False]


def test_the_content_of_an_ended_request_is_not_remembered() -> None:
    scheduler = scheduler_of()
    content = ImageContent.of("image", {"pixels": np.zeros(4)})
    scheduler.submit(ask("a", 10, ImageInput("cat", 2, 4, content), max_tokens=1), now=0.0)
    plan = scheduler.plan(now=0.0)
    assert plan.admitted[0].request.images[0].content is content
    commit(scheduler, plan)
    ended = scheduler.state.journal.recall("a")
    assert ended is not None
    assert ended.request.images == (ImageInput("cat", 2, 4),)
    assert ended.request.images[0].content is None


# -- images in one piece -------------------------------------------------------


def test_an_image_is_not_split_over_two_steps() -> None:
    scheduler = scheduler_of(disable_chunked_mm_input=True)
    scheduler.submit(ask("a", 30, ImageInput("cat", 10, 12)), now=0.0)
    tokens = [step(scheduler)["tokens"]["a"] for _ in range(3)]
    assert tokens == [10, 16, 4]


def test_without_chunks_a_prompt_waits_until_all_its_images_can_be_encoded() -> None:
    scheduler = scheduler_of(
        enable_chunked_prefill=False, max_num_batched_tokens=128, encoder_cache_size=8
    )
    scheduler.submit(ask("a", 20, ImageInput("cat", 2, 6)), now=0.0)
    scheduler.submit(ask("b", 20, ImageInput("dog", 2, 2), ImageInput("cow", 8, 3)), now=0.0)
    assert step(scheduler)["tokens"] == {"a": 20}
    assert step(scheduler)["tokens"] == {"a": 1, "b": 20}


# -- the rule, written plainly ------------------------------------------------


def plainly(sequence: Sequence, start: int, want: int, rest: int, setting: dict[str, Any]) -> int:
    """The longest row whose images all fit, found by trying."""
    for count in range(want, 0, -1):
        images = {
            image.identity: image
            for image in sequence.request.images
            if image.offset < start + count and image.end > start
        }
        last = start + count
        is_split = any(image.offset < last < image.end for image in images.values())
        if setting["whole"] and is_split and count < rest:
            continue
        fresh = [one for name, one in images.items() if name not in setting["claimed"]]
        if sum(image.length for image in fresh) <= min(setting["room"], setting["budget"]):
            return count
    return 0


@pytest.mark.parametrize("seed", range(40))
def test_a_row_reaches_as_far_as_the_plain_rule_says(seed: int) -> None:
    random = Random(seed)
    budget, capacity, whole = random.randint(4, 12), random.randint(4, 12), random.random() < 0.5
    config = Config.of(
        max_num_encoder_input_tokens=budget,
        encoder_cache_size=capacity,
        disable_chunked_mm_input=whole,
    )
    images = ImagesAhead(config, SlotTable(2, 64), Stats())
    for _ in range(20):
        found: list[ImageInput] = []
        position = 0
        while position < 40:
            name = random.choice("abcdef")
            found.append(ImageInput(name, position, 1 + ord(name) % 5))
            position = found[-1].end + random.choice([0, 1, 4])
        request = Request("r", [1] * 50, images=tuple(found))  # pyright: ignore[reportArgumentType]
        sequence = Sequence(request, 0, 64, 0.0, request.prompt)
        taken = random.randint(0, 4)
        used: Used = {HELD_EMBEDDINGS: taken, ENCODED_EMBEDDINGS: taken, "image a": 1}
        start = random.randint(0, 45)
        rest = 50 - start
        want = random.randint(1, rest)
        setting = {"whole": whole, "claimed": "a", "room": capacity - taken}
        expected = plainly(sequence, start, want, rest, setting | {"budget": budget - taken})
        assert images.reach(sequence, start, want, rest, used) == expected
