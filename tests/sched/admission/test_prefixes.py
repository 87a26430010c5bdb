"""What sequences find in the cache: when full blocks get keys, and which requests share them."""

from typing import Any

import pytest

from paceline import ImageInput, Scheduler
from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored
from paceline.testing.oracle import OracleRunner
from paceline.testing.reference import reference
from tests.sched import constant_steps as steps
from tests.sched.support import (
    PROMPT,
    Pipeline,
    ask,
    blocks_of,
    commit,
    drafting,
    findable,
    finish_all,
    sequence,
    small,
    state,
    step,
)

SHORT = list(range(100, 110))  # two full blocks and half of a third


def keys(scheduler: Scheduler, name: str) -> int:
    return len(sequence(scheduler, name).keys)


def test_a_resident_has_few_keys_until_a_lookup_reaches_its_blocks() -> None:
    scheduler = small()
    scheduler.submit(ask("a", SHORT), 0.0)
    step(scheduler)
    assert keys(scheduler, "a") == 1  # of the block that its own lookup looked for
    assert findable(scheduler, SHORT) == 8
    assert keys(scheduler, "a") == 2


def test_what_a_step_in_flight_fills_is_found_until_the_step_fails() -> None:
    scheduler = small()
    scheduler.submit(ask("a", SHORT), 0.0)
    plan = scheduler.plan(0.0)
    assert findable(scheduler, SHORT) == 8
    scheduler.fail(plan, 0.0)
    assert findable(scheduler, SHORT) == 0


def test_positions_that_were_not_handed_out_are_not_found() -> None:
    scheduler = small(max_num_batched_tokens=7)
    scheduler.submit(ask("a", SHORT), 0.0)
    scheduler.plan(0.0)
    assert findable(scheduler, SHORT) == 4


def test_positions_whose_tokens_are_not_known_yet_are_not_found() -> None:
    scheduler = small()
    scheduler.submit(ask("a", SHORT[:7], max_tokens=8), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)  # the second writes position 7
    assert findable(scheduler, SHORT[:7]) == 4
    commit(scheduler, first, a=[107])
    assert findable(scheduler, SHORT[:8]) == 8
    commit(scheduler, second, a=[108])


def test_of_two_that_compute_the_same_in_one_step_the_second_waits_for_the_first() -> None:
    scheduler = small()
    scheduler.submit(ask("a", SHORT), 0.0)
    scheduler.submit(ask("b", SHORT), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 10, "b": 2}


@pytest.mark.parametrize("listening", [True, False])
def test_only_with_events_is_everything_sealed_as_it_is_computed(listening: bool) -> None:
    scheduler = small(enable_kv_cache_events=listening)
    scheduler.submit(ask("a", SHORT), 0.0)
    step(scheduler)
    stored = [event for event in scheduler.cache_events() if isinstance(event, BlockStored)]
    assert [event.tokens for event in stored] == (
        [(100, 101, 102, 103), (104, 105, 106, 107)] if listening else []
    )


def test_equal_tokens_with_and_without_an_image_share_nothing_behind_it() -> None:
    images = {"text": (), "cat": (ImageInput("cat", 4, 8),), "dog": (ImageInput("dog", 4, 8),)}
    for order in (("text", "cat"), ("cat", "text"), ("cat", "dog"), ("cat", "text", "dog")):
        scheduler, runner = steps.make(), OracleRunner(32, 4, 50)
        for name in order:
            prompt = [9] * 4 + [7] * 8 + [1]
            scheduler.submit(steps.request(name, prompt, max_tokens=2, images=images[name]), 0.0)
            while not scheduler.idle:
                plan = scheduler.plan(0.0)
                scheduler.commit(plan, runner.run(plan), 0.0)
        assert scheduler.stats.prefix_hits == 4 * (len(order) - 1)


@pytest.mark.parametrize(("length", "hit"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_the_last_known_token_is_always_computed(length: int, hit: int) -> None:
    """Edge case 11: A prompt of k full blocks that are all cached hits k - 1 of them."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT[:length], max_tokens=1), 0.0)
        assert step(scheduler)["tokens"] == {name: length - (hit if name == "b" else 0)}


def test_a_hit_that_is_free_counts_as_needed_and_a_failure_leaves_it_free() -> None:
    """Edge case 12: Two of three blocks are hits, but they are on the free list too: 3 needed, 2
    there."""
    scheduler = small(num_blocks=4)
    scheduler.submit(ask("a", PROMPT[:9], max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 5, max_tokens=4), 0.0)
    step(scheduler)  # takes the two blocks without content
    scheduler.submit(ask("c", PROMPT[:9], max_tokens=1), 0.0)
    assert step(scheduler)["new"] == []
    assert scheduler.snapshot()["free_blocks"] == 2
    assert findable(scheduler, PROMPT[:9]) == 8
    gate = scheduler.state.journal.spells[-1].gate
    assert (gate.reason, gate.short) == ("blocks", 1)


def test_a_hit_is_held_before_new_blocks_are_taken() -> None:
    """Edge case 13: Or the new block of "b" would be the very one that it hit."""
    scheduler = small(num_blocks=2)
    scheduler.submit(ask("a", PROMPT[:8], max_tokens=1), 0.0)
    finish_all(scheduler)  # of its two blocks the second is the first to be taken
    scheduler.submit(ask("b", [*PROMPT[:4], 50, 51], max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.admitted[0].computed == 4
    assert len(set(plan.admitted[0].blocks)) == 2
    assert findable(scheduler, PROMPT[:8]) == 4


def test_evicting_one_of_two_equal_blocks_keeps_the_other() -> None:
    """Edge case 16: Both computed the third block of an aligned prompt; taking one back loses
    nothing."""
    scheduler = small(num_blocks=5)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT[:12], max_tokens=1), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12
    scheduler.submit(ask("c", 8, max_tokens=1), 0.0)  # the block without content, and a twin
    step(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12


def test_drafts_have_no_content_until_they_are_accepted() -> None:
    """Edge case 18: Positions 4 to 7 are planned with drafts, and nobody can find them."""
    scheduler = drafting(3)
    scheduler.submit(ask("a", PROMPT[:4], max_tokens=20), 0.0)
    step(scheduler, a=[1])
    scheduler.plan(0.0)
    scheduler.submit(ask("b", [*PROMPT[:4], 1, 2, 3, 4, 5]), 0.0)
    assert scheduler.plan(0.0).admitted[0].computed == 4


def test_blocks_are_visible_within_the_step_that_computes_them() -> None:
    """Edge case 19: Two equal prompts that arrive together are computed once."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 1}


def test_a_salt_separates_all_blocks_though_it_enters_only_the_first() -> None:
    """Edge case 20: A block beyond the first chains to the salted one."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT, max_tokens=1, cache_salt="pepper"), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT, cache_salt="pepper") == 12
    assert findable(scheduler, PROMPT) == 0
    assert findable(scheduler, PROMPT, cache_salt="salt") == 0
    assert findable(scheduler, PROMPT, adapter="pepper") == 0


def test_a_block_that_begins_where_an_image_ends_does_not_contain_it() -> None:
    """Edge case 24: But it chains to the blocks that do; an equal image elsewhere is other
    content."""
    scheduler = small()
    image = ImageInput("cat", offset=1, length=3)
    scheduler.submit(ask("a", PROMPT, max_tokens=1, images=(image,)), 0.0)
    finish_all(scheduler)
    same, moved = (ImageInput("cat", offset, length=3) for offset in (1, 2))
    assert findable(scheduler, PROMPT, images=(same,)) == 12
    assert findable(scheduler, PROMPT, images=(moved,)) == 0
    assert findable(scheduler, PROMPT, images=(ImageInput("dog", 1, 3),)) == 0
    assert findable(scheduler, PROMPT, images=(same, ImageInput("dog", 9, 2))) == 8
    assert findable(scheduler, PROMPT) == 0


def test_generated_blocks_know_the_images_of_the_prompt() -> None:
    """Edge case 25: A block that begins inside an image and ends with an output carries the image's
    name."""
    scheduler = small()
    image = ImageInput("cat", offset=3, length=3)
    scheduler.submit(ask("a", PROMPT[:6], max_tokens=4, images=(image,)), 0.0)
    for token in range(4):
        step(scheduler, a=[token])
    grown = [*PROMPT[:6], 0, 1]
    assert findable(scheduler, grown, images=(image,)) == 8
    assert findable(scheduler, grown, images=(ImageInput("dog", 3, 3),)) == 0


def test_equal_prompts_of_one_step_are_computed_once() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 1}
    assert blocks_of(scheduler, "a")[:3] == blocks_of(scheduler, "b")[:3]
    assert blocks_of(scheduler, "a")[3] != blocks_of(scheduler, "b")[3]


def test_the_last_token_of_an_aligned_prompt_is_computed_by_each() -> None:
    """Twelve tokens are three blocks, but the third holds the token whose sample is wanted."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT[:12]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 12, "b": 4}
    assert blocks_of(scheduler, "a")[:2] == blocks_of(scheduler, "b")[:2]
    assert blocks_of(scheduler, "a")[2] != blocks_of(scheduler, "b")[2]


def test_three_requests_share_one_computation() -> None:
    scheduler = small()
    for name in "abc":
        scheduler.submit(ask(name, PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 13, "b": 1, "c": 1}
    assert scheduler.snapshot()["free_blocks"] == 16 - 3 - 3
    assert [new.computed for new in plan.admitted] == [0, 12, 12]


def test_a_later_request_shares_as_far_as_it_is_alike() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.submit(ask("b", [*PROMPT[:6], 1, 2, 3, 4, 5, 6, 7]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 9}


def test_a_chunk_is_shared_as_far_as_it_goes() -> None:
    """ "a" computes 6 of its 13 tokens in the first step: one block for "b" to find."""
    scheduler = small(long_prefill_token_threshold=6, max_num_batched_tokens=10, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 6, "b": 4}
    assert blocks_of(scheduler, "a")[0] == blocks_of(scheduler, "b")[0]
    assert blocks_of(scheduler, "a")[1] != blocks_of(scheduler, "b")[1]
    assert [step(scheduler)["tokens"] for _ in range(2)] == [{"a": 6, "b": 4}, {"a": 1, "b": 1}]


def test_every_chunk_is_findable_as_soon_as_it_is_planned() -> None:
    scheduler = small(max_num_batched_tokens=8, enable_kv_cache_events=True)
    scheduler.submit(ask("a", PROMPT), 0.0)
    found: list[tuple[int, int]] = []
    for _ in range(2):
        plan = scheduler.plan(0.0)
        found.append((findable(scheduler, PROMPT), len(scheduler.cache_events())))
        commit(scheduler, plan)
    assert found == [(8, 2), (12, 1)]


def test_a_request_that_waited_for_the_budget_finds_what_was_computed_meanwhile() -> None:
    scheduler = small(max_num_batched_tokens=8)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 8}
    assert step(scheduler)["tokens"] == {"a": 5, "b": 1}


def test_blocks_of_a_step_in_flight_are_shared_too() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    first = scheduler.plan(0.0)
    scheduler.submit(ask("b", PROMPT), 0.0)
    second = scheduler.plan(0.0)
    assert second.to_dict()["tokens"] == {"a": 1, "b": 1}
    commit(scheduler, first)
    assert commit(scheduler, second) == {
        name: {"tokens": [9], "finish": None} for name in ("a", "b")
    }


@pytest.mark.parametrize("other", [{"cache_salt": "pepper"}, {"adapter": "lora"}])
def test_another_salt_or_adapter_never_shares(other: dict[str, Any]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.submit(ask("b", PROMPT, **other), 0.0)
    scheduler.submit(ask("c", PROMPT, **other), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 13, "c": 1}
    assert not set(blocks_of(scheduler, "a")) & set(blocks_of(scheduler, "b"))


def test_without_a_prefix_cache_nobody_shares() -> None:
    scheduler = small(enable_prefix_caching=False)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 13}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_shared_blocks_hold_what_everyone_expects(depth: int) -> None:
    """An oracle reads every cell that a row depends on, also within the step that fills it."""
    scheduler = small(max_num_batched_tokens=10)
    asked = [
        ask(name, PROMPT[:length], max_tokens=6)
        for name, length in {"a": 13, "b": 12, "c": 9, "d": 13}.items()
    ]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert scheduler.stats.prefix_hits > 0


def generating(tokens: int) -> Scheduler:
    """A resident "a" that was asked with 4 tokens and has generated 0, 1, 2, ..."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT[:4], max_tokens=40), 0.0)
    for token in range(tokens):
        step(scheduler, a=[token])
    return scheduler


def test_generated_blocks_are_found_while_their_owner_still_runs() -> None:
    scheduler = generating(9)  # 12 positions computed: the prompt and two blocks of outputs
    scheduler.submit(ask("b", [*PROMPT[:4], *range(8), 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1}
    assert blocks_of(scheduler, "a")[:3] == blocks_of(scheduler, "b")[:3]
    assert state(scheduler, "b")["cached"] == 12


def test_a_generated_block_is_found_no_sooner_than_it_is_handed_out() -> None:
    """The eighth position is computed by the step that also admits "b", which may read it."""
    scheduler = generating(4)  # 8 tokens known, 7 positions computed
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1}
    scheduler = generating(3)  # the eighth token is not known yet
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 5}


def test_other_outputs_are_not_found() -> None:
    scheduler = generating(9)
    scheduler.submit(ask("b", [*PROMPT[:4], 0, 1, 2, 99, 4, 5]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 6}


def test_a_lookup_goes_from_one_generating_resident_to_the_next() -> None:
    """ "b" went on where "a" was, and "c" goes on where "b" is."""
    scheduler = generating(5)
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 50], max_tokens=40), 0.0)
    for token in (51, 52, 53, 54):
        step(scheduler, b=[token])
    scheduler.submit(ask("c", [*PROMPT[:4], *range(4), 50, 51, 52, 53, 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1, "c": 1}


def test_a_generated_block_in_flight_is_forgotten_if_its_step_fails() -> None:
    scheduler = generating(4)
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 77]), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 1, "b": 1}
    scheduler.retry(plan, 0.0)
    assert findable(scheduler, [*PROMPT[:4], *range(4)]) == 4
    assert step(scheduler)["tokens"] == {"a": 4, "b": 1}


def test_generated_blocks_are_found_after_the_end() -> None:
    scheduler = generating(9)
    scheduler.abort("a", 0.0)
    assert findable(scheduler, [*PROMPT[:4], *range(9)]) == 12


def test_only_confirmed_positions_are_found_after_an_end_in_flight() -> None:
    scheduler = generating(4)
    scheduler.plan(0.0)  # would compute the eighth position
    scheduler.abort("a", 0.0)
    assert findable(scheduler, [*PROMPT[:4], *range(4)]) == 4


def test_events_tell_what_became_findable_and_what_no_longer_is() -> None:
    scheduler = small(num_blocks=2, enable_kv_cache_events=True)
    scheduler.submit(ask("a", PROMPT[:8], max_tokens=1, adapter="lora"), 0.0)
    finish_all(scheduler)
    first, second = scheduler.cache_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent, first.tokens, first.adapter) == (None, tuple(PROMPT[:4]), "lora")
    assert (second.parent, second.tokens) == (first.key, tuple(PROMPT[4:8]))
    scheduler.submit(ask("b", 3, max_tokens=1), 0.0)
    finish_all(scheduler)
    assert scheduler.cache_events() == [BlockRemoved(second.key)]
    assert scheduler.reset_prefix_cache()
    assert scheduler.cache_events() == [AllBlocksCleared()]
    assert scheduler.cache_events() == []


def test_no_events_are_kept_unless_somebody_wants_them() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 8), 0.0)
    finish_all(scheduler)
    assert scheduler.cache_events() == []
