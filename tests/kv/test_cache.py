"""The face of the KV cache: what is found, attached, forked, released and reset."""

from typing import Any

import numpy as np
import pytest

from paceline.core.events import AllBlocksCleared
from paceline.core.multimodal import ImageInput
from paceline.core.plan import Pairs
from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import MISS, Hit
from tests.kv.support import (
    SLOTS,
    TEXT,
    admit,
    cache,
    cached,
    extend,
    forked,
    put,
    residents_sealed_for,
    sequence,
)

# -- finding -------------------------------------------------------------------


def test_blocks_for_tokens_are_rounded_up() -> None:
    assert [cache().blocks_for(tokens) for tokens in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_nothing_is_found_in_an_empty_cache() -> None:
    kv = cache()
    assert kv.lookup(sequence(kv, TEXT[:12])) is MISS


def test_the_longest_common_prefix_of_full_blocks_is_found() -> None:
    kv = cache()
    cached(kv, TEXT[:14])
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0, 1, 2), 12)
    assert kv.lookup(sequence(kv, TEXT[:11])) == Hit((0, 1), 8)
    assert kv.lookup(sequence(kv, [*TEXT[:6], 1, 2, 3])) == Hit((0,), 4)
    assert kv.lookup(sequence(kv, [1, *TEXT[1:12]])) == MISS


@pytest.mark.parametrize(("length", "found"), [(11, 8), (12, 8), (13, 12), (4, 0), (5, 4), (1, 0)])
def test_the_last_token_is_never_found(length: int, found: int) -> None:
    kv = cache()
    cached(kv, TEXT[:16])
    assert kv.lookup(sequence(kv, TEXT[:length])).tokens == found


def test_a_sequence_finds_its_own_blocks_again() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:10])
    extend(kv, 0, made, TEXT[10:17])
    blocks = kv.tables.blocks(0)
    kv.release(0, made)
    assert kv.lookup(made) == Hit(tuple(blocks[:4]), 16)


@pytest.mark.parametrize(
    "fields",
    [{"cache_salt": "pepper"}, {"adapter": "lora"}, {"images": (ImageInput("cat", 1, 2),)}],
    ids=str,
)
def test_equal_prompts_of_another_salt_adapter_or_image_never_share(fields: Any) -> None:
    kv = cache()
    cached(kv, TEXT[:12])
    assert kv.lookup(sequence(kv, TEXT[:12], **fields)) == MISS
    cached(kv, TEXT[:12], **fields)
    assert kv.lookup(sequence(kv, TEXT[:12], **fields)).tokens == 8


def test_prompts_share_what_comes_before_an_item() -> None:
    kv = cache()
    cached(kv, TEXT[:16])
    pictured = sequence(kv, TEXT[:16], images=(ImageInput("cat", 9, 2),))
    assert kv.lookup(pictured).tokens == 8


def test_with_prefix_caching_off_nothing_is_keyed_sealed_or_found() -> None:
    kv = cache(enable_prefix_caching=False, enable_kv_cache_events=True)
    made = put(kv, 0, TEXT[:12])
    assert made.keys == []
    assert residents_sealed_for(kv, sequence(kv, TEXT[:16])) == []
    kv.release(0, made, 12)
    assert kv.lookup(sequence(kv, TEXT[:12])) == MISS
    assert kv.events == []
    kv.check()


# -- admitting -----------------------------------------------------------------


def test_an_admitted_sequence_gets_its_hit_and_new_blocks_behind_it() -> None:
    kv = cache()
    first = put(kv, 0, TEXT[:10])
    other = sequence(kv, TEXT[:14])
    hit = kv.lookup(other)
    assert kv.attach(1, other, hit, 14) == ((0, 1, 3, 4),)
    assert (kv.tables.blocks(0), kv.tables.blocks(1)) == ([0, 1, 2], [0, 1, 3, 4])
    assert kv.tables.held.tolist() == [3, 4, 0, 0]
    kv.check()
    kv.release(0, first)
    assert kv.tables.blocks(1) == [0, 1, 3, 4]


def test_a_slot_is_attached_only_when_it_is_empty() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:4])
    with pytest.raises(AssertionError, match=r"slot 0 already holds \d blocks"):
        kv.attach(0, made, MISS, 4)


def test_a_hit_on_the_free_list_counts_as_needed() -> None:
    kv = cache(blocks=6)
    cached(kv, TEXT[:12])
    wanted = sequence(kv, TEXT[:18])
    hit = kv.lookup(wanted)
    assert (len(hit.device), kv.pool.free) == (3, 6)
    assert kv.tables.missing(hit, 18) == 5  # two new ones, and three that leave the free list
    put(kv, 0, TEXT[:12])  # holds two of the three, and computes the last one itself
    assert kv.tables.missing(kv.lookup(wanted), 18) == 3
    assert kv.tables.missing(MISS, 18) == 5


def test_asking_what_an_admission_would_need_changes_nothing() -> None:
    kv = cache(blocks=4)
    cached(kv, TEXT[:8])
    holder = put(kv, 0, [1, 2, 3, 4, 5])
    wanted = sequence(kv, TEXT[:13])
    before = [kv.pool.holders(block) for block in range(4)], kv.pool.free
    hit = kv.lookup(wanted)
    assert kv.tables.missing(hit, 13) > kv.pool.free  # so it is not admitted
    assert ([kv.pool.holders(block) for block in range(4)], kv.pool.free) == before
    assert kv.lookup(wanted) == hit
    kv.check()
    kv.release(0, holder)


def test_hits_are_held_before_new_blocks_are_taken() -> None:
    kv = cache(blocks=4)
    cached(kv, TEXT[:8])  # the oldest content, and by that the first to be evicted
    cached(kv, [1, 2, 3, 4, 5, 6, 7, 8])
    wanted = sequence(kv, TEXT[:16])
    hit = kv.lookup(wanted)
    assert hit.device == (0, 1)
    assert kv.tables.missing(hit, 16) == kv.pool.free == 4
    assert kv.attach(0, wanted, hit, 16)[0][:2] == (0, 1)
    assert len(set(kv.tables.blocks(0))) == 4
    kv.check()


def test_a_reused_block_loses_its_content_when_it_is_taken_and_not_before() -> None:
    kv = cache(blocks=2)
    old = cached(kv, TEXT[:8])
    assert kv.pool.find(old.keys) == [0, 1]
    new = sequence(kv, [1, 2, 3, 4, 5])
    kv.attach(0, new, MISS, 5)
    assert kv.pool.find(old.keys) == []
    kv.seal(0, new, 5, None)
    assert kv.lookup(sequence(kv, [1, 2, 3, 4, 5])).tokens == 4


def test_a_released_slot_has_nothing_left() -> None:
    kv = cache()
    assert kv.index.sealed == [0] * SLOTS
    made = put(kv, 0, TEXT[:10])
    kv.release(0, made)
    assert (kv.tables.blocks(0), kv.tables.held.tolist(), kv.index.sealed) == (
        [],
        [0] * SLOTS,
        [0] * SLOTS,
    )
    assert kv.pool.free == kv.pool.size


def test_of_a_released_sequence_the_deepest_block_is_reused_first() -> None:
    kv = cache(blocks=4)
    cached(kv, TEXT[:14])  # three full blocks and a part of one, which goes first of all
    for left in (12, 8, 4, 0):
        kv.pool.take(1)
        assert kv.lookup(sequence(kv, TEXT[:16])).tokens == left


# -- resetting -----------------------------------------------------------------


def test_the_cache_is_reset_only_while_no_block_is_held() -> None:
    kv = cache(enable_kv_cache_events=True)
    made = put(kv, 0, TEXT[:9])
    assert not kv.reset()
    assert kv.lookup(sequence(kv, TEXT[:9])).tokens == 8
    kv.release(0, made)
    assert kv.reset()
    kv.check()
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS
    assert kv.events is not None
    assert kv.events[-1] == AllBlocksCleared()
    assert [type(event) for event in kv.events].count(AllBlocksCleared) == 1


def test_a_reset_forgets_pending_seals_too() -> None:
    kv = cache(blocks=1)
    made = sequence(kv, TEXT[:4])
    admit(kv, 0, made, step=1)
    kv.release(0, made)
    assert kv.reset()
    put(kv, 0, TEXT[:4])  # the same content in the same block, computed for sure
    kv.index.retract()
    assert kv.lookup(sequence(kv, TEXT[:5])).tokens == 4


def test_a_reset_without_events_reports_nothing() -> None:
    kv = cache()
    assert kv.reset()
    assert kv.events is None


# -- forking -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "blocks", "copies"),
    [
        (10, [0, 1, 3], ((2, 3),)),
        (9, [0, 1, 3], ((2, 3),)),
        (8, [0, 1, 3], ()),
        (5, [0, 3], ((1, 3),)),
        (3, [3], ((0, 3),)),
        (0, [3], ()),
    ],
)
def test_a_fork_shares_full_blocks_and_copies_the_one_being_written(
    tokens: int, blocks: list[int], copies: Pairs
) -> None:
    kv = cache()
    _, _, found = forked(kv, tokens)
    assert (kv.tables.blocks(0), kv.tables.blocks(1), found) == ([0, 1, 2], blocks, copies)
    assert [kv.pool.holders(block) for block in blocks] == [2] * (len(blocks) - 1) + [1]


def test_every_fork_takes_one_block_whatever_the_length() -> None:
    kv = cache()
    put(kv, 0, TEXT[:30])
    free = kv.pool.free
    for slot in (1, 2, 3):
        kv.fork(0, slot, sequence(kv, TEXT[:30]), 29)
    assert kv.pool.free == free - 3
    kv.check()


def test_either_side_of_a_fork_may_go_first() -> None:
    for first, second in ((0, 1), (1, 0)):
        kv = cache()
        slots = dict(enumerate(forked(kv, 9)[:2]))
        kv.release(first, slots[first])
        assert kv.pool.free == 16 - 3
        kv.check()
        kv.release(second, slots[second])
        assert kv.pool.free == 16
        kv.check()


def test_a_fork_goes_on_from_what_is_sealed() -> None:
    kv = cache()
    parent, child, _ = forked(kv, 9)
    assert (kv.index.sealed[1], kv.index.tail(1, child)) == (2, parent.keys[1])
    extend(kv, 1, child, [1, 2, 3])
    assert (kv.index.sealed[1], len(kv.tables.blocks(1))) == (3, 4)
    assert kv.lookup(sequence(kv, [*TEXT[:10], 1, 2, 3])).device == tuple(kv.tables.blocks(1)[:3])
    assert kv.lookup(sequence(kv, [*TEXT[:10], 4, 5, 6])).device == (0, 1)


def test_what_a_fork_generates_is_looked_for_behind_what_it_shares() -> None:
    kv = cache()
    _, child, _ = forked(kv, 9)
    longer = sequence(kv, TEXT[:16])
    assert sorted(residents_sealed_for(kv, longer)) == [0, 1]
    kv.release(1, child)
    assert residents_sealed_for(kv, longer) == [0]


def test_a_fork_without_a_prefix_cache_shares_too() -> None:
    kv = cache(enable_prefix_caching=False)
    _, child, copies = forked(kv, 9)
    assert (kv.tables.blocks(1), copies, kv.index.sealed[1]) == ([0, 1, 3], ((2, 3),), 0)
    kv.release(1, child)
    kv.check()


def test_a_slot_is_placed_only_when_it_is_empty() -> None:
    kv = cache()
    put(kv, 0, TEXT[:4])
    with pytest.raises(AssertionError, match=r"slot 0 already holds \d blocks"):
        kv.tables.place(0, (1,))


def test_blocks_that_are_held_already_are_mapped_as_they_are() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:9])
    blocks = tuple(kv.pool.take(3))
    kv.tables.place(2, blocks)
    kv.index.enter(2, made, sealed=0)
    kv.check()
    assert (kv.tables.blocks(2), kv.index.sealed[2], kv.pool.free) == ([0, 1, 2], 0, 13)
    kv.seal(2, made, 8, None)
    assert kv.lookup(made) == Hit((0, 1), 8)


def rebased(kv: KVCache, tokens: int) -> tuple[Sequence, Pairs]:
    """Two sequences that came from one, grew apart, and were joined again after `tokens`."""
    parent, child, _ = forked(kv, 9)
    extend(kv, 0, parent, list(range(50, 50 + tokens - 10)))
    extend(kv, 1, child, list(range(70, 70 + tokens - 10)))
    kv.index.unlist(1)
    child.keys, child.tokens = list(parent.keys), parent.tokens.copy()
    copies = kv.rebase(1, child, 0, tokens)
    kv.check()
    return child, copies


def test_a_beam_goes_on_from_another_and_keeps_its_block_for_what_comes_next() -> None:
    kv = cache()
    child, copies = rebased(kv, 15)
    assert kv.tables.blocks(0) == [0, 1, 2, 4]
    assert kv.tables.blocks(1) == [0, 1, 2, 5]
    assert copies == ((4, 5),)
    assert (kv.index.sealed[1], kv.index.tail(1, child)) == (3, child.keys[2])
    assert kv.pool.free == 16 - 5  # the block in which it had grown apart is free again


def test_of_what_a_beam_lets_go_the_deepest_block_is_reused_first() -> None:
    kv = cache()
    rebased(kv, 20)
    assert kv.tables.blocks(1) == kv.tables.blocks(0)
    assert kv.pool.take(kv.pool.free)[-3:] == [7, 6, 3]  # the first is where it had grown apart


def test_a_beam_has_as_much_sealed_as_the_one_it_goes_on_from() -> None:
    kv = cache()
    parent, child, _ = forked(kv, 9)
    extend(kv, 0, parent, [50, 51])
    kv.index.unlist(1)
    child.keys, child.tokens = list(parent.keys), parent.tokens.copy()
    kv.tables.grow(np.array([1]), np.array([1], np.int32))
    assert kv.rebase(1, child, 0, 12) == ()
    assert (kv.index.sealed[1], kv.index.tail(1, child)) == (3, child.keys[2])
    kv.check()


def test_at_the_edge_of_a_block_nothing_is_copied() -> None:
    kv = cache()
    child, copies = rebased(kv, 16)
    assert (kv.tables.blocks(1), copies) == ([0, 1, 2, 4], ())
    extend(kv, 1, child, [1, 2, 3, 4])
    assert kv.lookup(sequence(kv, [*child.tokens.tolist(), 5])).tokens == 20
    kv.release(1, child)
    kv.check()


def test_a_beam_within_the_first_block_copies_all_there_is() -> None:
    kv = cache()
    parent, child = put(kv, 0, TEXT[:3]), sequence(kv, TEXT[:3])
    assert kv.fork(0, 1, child, 2) == ((0, 1),)
    kv.index.unlist(1)
    child.keys = list(parent.keys)
    assert kv.rebase(1, child, 0, 3) == ((0, 1),)
    assert (kv.tables.blocks(0), kv.tables.blocks(1)) == ([0], [1])
    kv.check()


def test_beams_without_a_prefix_cache_share_too() -> None:
    kv = cache(enable_prefix_caching=False)
    child, copies = rebased(kv, 15)
    assert (kv.tables.blocks(1), copies) == ([0, 1, 2, 5], ((4, 5),))
    kv.release(1, child)
    kv.check()


# -- the checker ---------------------------------------------------------------


def test_the_checker_wants_what_is_sealed_to_be_held() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.index.sealed[0] = 3
    with pytest.raises(AssertionError):
        kv.check()


@pytest.mark.parametrize("block", [0, 15])
def test_the_checker_counts_the_holders_of_every_table_entry(block: int) -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.tables.table[0, 1] = block  # its own first block, or one that is free
    with pytest.raises(AssertionError, match=r"block [01] has"):
        kv.check()


def test_the_checker_counts_fences_as_holders() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.fences.add_copies(1, ((1, 1),))
    kv.check()
    kv.pool.drop([1])
    with pytest.raises(AssertionError, match="block 1 has"):
        kv.check()


def test_the_checker_misses_no_slot() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.tables.held[0] = 0
    with pytest.raises(AssertionError, match="block 0 has"):
        kv.check()
