"""Which requests could never run, and what they are refused with."""

import pytest

from paceline import ImageInput, RequestError
from tests.sched.groups.support import run
from tests.sched.support import DISCIPLINES, ask, commit, finish_all, small, tokens_of_steps


@DISCIPLINES
def test_never_is_told_at_once_and_later_is_waited_for(discipline: str) -> None:
    """Edge case 67: What fits the empty pool is never refused, whatever the watermark."""
    scheduler = small(num_blocks=4, watermark=0.5, discipline=discipline)
    with pytest.raises(RequestError, match="5 blocks of 4, and the whole pool has 4"):
        scheduler.submit(ask("never", 16, max_tokens=2), 0.0)
    scheduler.submit(ask("first", 3, max_tokens=2), 0.0)
    scheduler.submit(ask("later", 16, max_tokens=1), 0.0)
    assert tokens_of_steps(scheduler, 3) == [{"first": 3}, {"first": 1}, {"later": 16}]


def test_a_family_that_can_never_fit_is_told_at_once() -> None:
    """Edge case 67: With the blocks of all its sequences, of which those of the prompt count
    once."""
    scheduler = small(num_blocks=6, watermark=0.5)
    with pytest.raises(RequestError, match="in each of 3 sequences need 8 blocks of 4"):
        scheduler.submit(ask("never", 9, max_tokens=5, n=3), 0.0)
    scheduler.submit(ask("later", 9, max_tokens=4, n=3), 0.0)
    assert len(finish_all(scheduler)["2_later"]) == 4


def test_a_family_larger_than_the_slots_is_refused_with_numbers() -> None:
    scheduler = small(max_num_seqs=4)
    with pytest.raises(
        RequestError, match=r"^request 'a' asks for 5 sequences at once, and max_num_seqs is 4$"
    ):
        scheduler.submit(ask("a", 3, n=2, best_of=5), 0.0)
    scheduler.submit(ask("b", 3, n=4), 0.0)
    assert scheduler.unfinished == 1


@pytest.mark.parametrize(("blocks", "fits"), [(11, True), (10, False)])
def test_a_family_larger_than_the_pool_is_refused_with_numbers(blocks: int, fits: bool) -> None:
    """Nine tokens and nine more: two blocks for all, and three more for each of three."""
    scheduler = small(num_blocks=blocks)
    asked = ask("a", 9, max_tokens=9, n=3)
    if fits:
        assert set(run(scheduler, asked).ends) == {"a", "0_a", "1_a", "2_a"}
        return
    with pytest.raises(RequestError) as refusal:
        scheduler.submit(asked, 0.0)
    assert str(refusal.value) == (
        "request 'a': 9 prompt tokens and up to 9 new ones in each of 3 sequences need 11 blocks "
        "of 4, and the whole pool has 10"
    )


def test_a_family_that_never_fits_is_refused_at_the_edge_of_a_block() -> None:
    """The last token of the prompt is computed by each, so its block is not shared."""
    small(num_blocks=4).submit(ask("a", 4, max_tokens=5, n=2), 0.0)
    with pytest.raises(RequestError, match="need 4 blocks"):
        small(num_blocks=3).submit(ask("a", 4, max_tokens=5, n=2), 0.0)


def test_a_request_that_could_never_finish_is_refused_with_the_numbers() -> None:
    scheduler = small(num_blocks=3)
    with pytest.raises(RequestError) as refused:
        scheduler.submit(ask("a", 8, max_tokens=6), 0.0)
    complaint = str(refused.value)
    for number in ("'a'", "8 prompt tokens", "6 new", "4 blocks of 4", "pool has 3"):
        assert number in complaint
    assert scheduler.unfinished == 0
    assert scheduler.snapshot()["requests"] == {}


def test_the_last_token_needs_no_block() -> None:
    """8 + 5 tokens are 13, but the thirteenth is never computed: 12 positions, 3 blocks."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", 8, max_tokens=5), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 5}


def test_a_request_without_max_tokens_must_fit_up_to_the_model_length() -> None:
    with pytest.raises(RequestError, match="16 blocks"):
        small(num_blocks=15).submit(ask("a", 8, max_tokens=None), 0.0)
    small(num_blocks=16).submit(ask("a", 8, max_tokens=None), 0.0)


@pytest.mark.parametrize("length", [64, 65, 200])
def test_a_prompt_that_leaves_no_room_for_one_token_is_refused(length: int) -> None:
    with pytest.raises(RequestError, match=f"{length} tokens .* max_model_len 64"):
        small(num_blocks=99).submit(ask("a", length, max_tokens=1), 0.0)


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    scheduler = small(max_num_batched_tokens=64)
    scheduler.submit(ask("a", 63, max_tokens=9), 0.0)
    plan = scheduler.plan(0.0)
    assert commit(scheduler, plan) == {"a": {"tokens": [9], "finish": "length"}}


def test_max_tokens_are_clamped_to_the_model_length() -> None:
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=1000), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 3}


def test_min_tokens_beyond_the_model_length_make_no_endless_request() -> None:
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=50, min_tokens=50, eos_token_ids=(9,)), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=None, min_tokens=50, stop_token_ids=(9,)), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 3, "b": [9] * 3}


def test_a_refused_request_may_come_again_in_another_form() -> None:
    scheduler = small(num_blocks=3)
    with pytest.raises(RequestError):
        scheduler.submit(ask("a", 8, max_tokens=6), 0.0)
    scheduler.submit(ask("a", 8, max_tokens=5), 0.0)
    assert scheduler.unfinished == 1


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (
            {"max_num_encoder_input_tokens": 5},
            "6 embeddings, and max_num_encoder_input_tokens is 5",
        ),
        ({"encoder_cache_size": 5}, "6 embeddings, and encoder_cache_size is 5: use a smaller"),
        (
            {"disable_chunked_mm_input": True, "max_num_batched_tokens": 13, "max_num_seqs": 9},
            "6 positions, and with disable_chunked_mm_input a row of a step has room for 5",
        ),
        (
            {"disable_chunked_mm_input": True, "long_prefill_token_threshold": 4},
            "has room for 4",
        ),
        (
            {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": 512,
                "encoder_cache_size": 8,
            },
            "9 embeddings in all, and encoder_cache_size is 8; a prompt is computed",
        ),
    ],
)
def test_images_that_can_never_be_encoded_are_refused(settings: dict[str, int], match: str) -> None:
    images = (ImageInput("cat", 1, 6), ImageInput("dog", 7, 3), ImageInput("cat", 10, 6))
    usual = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_num_encoder_input_tokens": 64}
    scheduler = small(**(usual | settings))
    with pytest.raises(RequestError, match=match):
        scheduler.submit(ask("a", 20, images=images, max_tokens=2), 0.0)
    text = images[1:2] if "encoder_cache_size" not in settings else ()
    scheduler.submit(ask("b", 20, images=text, max_tokens=2), 0.0)
    assert len(finish_all(scheduler)["b"]) == 2
