"""Block tables and the prefix index: what is found, held, sealed and let go."""

from typing import Any

import numpy as np
import pytest

from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored
from paceline.core.plan import NOTHING_GROWN, Pairs
from paceline.core.request import Item, Request, Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import MISS, Hit
from tests.kv.support import LENGTH, SIZE, SLOTS, TEXT, admit, cache, cached, extend, put, sequence

# -- finding ----------------------------------------------------------------


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
    blocks = kv.blocks(0)
    kv.release(0, made)
    assert kv.lookup(made) == Hit(tuple(blocks[:4]), 16)


@pytest.mark.parametrize(
    "fields",
    [{"cache_salt": "pepper"}, {"adapter": "lora"}, {"items": (Item("cat", 1, 2),)}],
    ids=str,
)
def test_equal_prompts_of_another_salt_adapter_or_item_never_share(fields: Any) -> None:
    kv = cache()
    cached(kv, TEXT[:12])
    assert kv.lookup(sequence(kv, TEXT[:12], **fields)) == MISS
    cached(kv, TEXT[:12], **fields)
    assert kv.lookup(sequence(kv, TEXT[:12], **fields)).tokens == 8


def test_prompts_share_what_comes_before_an_item() -> None:
    kv = cache()
    cached(kv, TEXT[:16])
    pictured = sequence(kv, TEXT[:16], items=(Item("cat", 9, 2),))
    assert kv.lookup(pictured).tokens == 8


def test_with_prefix_caching_off_nothing_is_named_sealed_or_found() -> None:
    kv = cache(enable_prefix_caching=False, enable_kv_cache_events=True)
    made = put(kv, 0, TEXT[:12])
    assert made.keys == []
    assert asked(kv, sequence(kv, TEXT[:16])) == []
    kv.release(0, made, 12)
    assert kv.lookup(sequence(kv, TEXT[:12])) == MISS
    assert kv.events == []
    kv.check()


# -- admitting --------------------------------------------------------------


def test_an_admitted_sequence_gets_its_hit_and_new_blocks_behind_it() -> None:
    kv = cache()
    first = put(kv, 0, TEXT[:10])
    other = sequence(kv, TEXT[:14])
    hit = kv.lookup(other)
    assert kv.attach(1, other, hit, 14) == (0, 1, 3, 4)
    assert (kv.blocks(0), kv.blocks(1)) == ([0, 1, 2], [0, 1, 3, 4])
    assert kv.held.tolist() == [3, 4, 0, 0]
    kv.check()
    kv.release(0, first)
    assert kv.blocks(1) == [0, 1, 3, 4]


def test_a_slot_is_attached_only_when_it_is_empty() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:4])
    with pytest.raises(AssertionError, match="slot 0 already holds blocks"):
        kv.attach(0, made, MISS, 4)


def test_a_hit_on_the_free_list_counts_as_needed() -> None:
    kv = cache(blocks=6)
    cached(kv, TEXT[:12])
    wanted = sequence(kv, TEXT[:18])
    hit = kv.lookup(wanted)
    assert (len(hit.blocks), kv.pool.free) == (3, 6)
    assert kv.missing(hit, 18) == 5  # two new ones, and three that leave the free list
    put(kv, 0, TEXT[:12])  # holds two of the three, and computes the last one itself
    assert kv.missing(kv.lookup(wanted), 18) == 3
    assert kv.missing(MISS, 18) == 5


def test_asking_what_an_admission_would_need_changes_nothing() -> None:
    kv = cache(blocks=4)
    cached(kv, TEXT[:8])
    holder = put(kv, 0, [1, 2, 3, 4, 5])
    wanted = sequence(kv, TEXT[:13])
    before = [kv.pool.holders(block) for block in range(4)], kv.pool.free
    hit = kv.lookup(wanted)
    assert kv.missing(hit, 13) > kv.pool.free  # so it is not admitted
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
    assert hit.blocks == (0, 1)
    assert kv.missing(hit, 16) == kv.pool.free == 4
    assert kv.attach(0, wanted, hit, 16)[:2] == (0, 1)
    assert len(set(kv.blocks(0))) == 4
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
    assert kv.sealed == [0] * SLOTS
    made = put(kv, 0, TEXT[:10])
    kv.release(0, made)
    assert (kv.blocks(0), kv.held.tolist(), kv.sealed) == ([], [0] * SLOTS, [0] * SLOTS)
    assert kv.pool.free == kv.pool.size


def test_of_a_released_sequence_the_deepest_block_is_reused_first() -> None:
    kv = cache(blocks=4)
    cached(kv, TEXT[:14])  # three full blocks and a part of one, which goes first of all
    for left in (12, 8, 4, 0):
        kv.pool.take(1)
        assert kv.lookup(sequence(kv, TEXT[:16])).tokens == left


# -- growing ----------------------------------------------------------------


def test_what_each_slot_lacks_is_never_negative() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    put(kv, 1, [7])
    slots = np.array([0, 1, 2])
    assert kv.short(slots, np.array([3, 4, 0], np.int32)).tolist() == [0, 0, 0]
    assert kv.short(slots, np.array([9, 13, 1], np.int32)).tolist() == [1, 3, 1]


def test_slots_grow_by_different_numbers_of_blocks() -> None:
    kv = cache()
    put(kv, 0, [1])  # block 0
    put(kv, 2, [2, 2, 2, 2, 2])  # 1 and 2
    put(kv, 3, [3])  # 3
    grown = kv.grow(np.array([2, 0, 3]), np.array([2, 0, 1], np.int32))
    assert grown.slot.tolist() == [2, 2, 3]
    assert grown.index.tolist() == [2, 3, 1]
    assert grown.block.tolist() == [4, 5, 6]
    assert [kv.blocks(slot) for slot in (0, 2, 3)] == [[0], [1, 2, 4, 5], [3, 6]]
    kv.check()


def test_slots_that_need_no_block_get_none_where_the_others_get_one() -> None:
    kv = cache()
    for slot in range(3):
        put(kv, slot, [slot])
    grown = kv.grow(np.array([2, 1, 0]), np.array([1, 0, 1], np.int32))
    assert (grown.slot.tolist(), grown.index.tolist()) == ([2, 0], [1, 1])
    assert [kv.blocks(slot) for slot in range(3)] == [[0, 4], [1], [2, 3]]
    kv.check()


def test_growing_by_nothing_takes_nothing() -> None:
    kv = cache()
    put(kv, 0, [1])
    assert kv.grow(np.array([0]), np.array([0], np.int32)) is NOTHING_GROWN
    assert kv.grow(np.array([], np.intp), np.array([], np.int32)) is NOTHING_GROWN
    assert kv.pool.free == 15


def test_growing_by_one_is_growing_by_a_one_for_each() -> None:
    one, other = cache(), cache()
    for kv in (one, other):
        put(kv, 0, [1])
        put(kv, 2, [2, 2, 2, 2, 2])
    slots = np.array([2, 0])
    a, b = one.grow_by_one(slots), other.grow(slots, np.ones(2, np.int32))
    for name in ("slot", "index", "block"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    assert one.table.tolist() == other.table.tolist()
    assert one.held.tolist() == other.held.tolist()
    one.check()


def test_a_slot_can_grow_to_the_full_model_length() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:1])
    kv.grow(np.array([0]), kv.short(np.array([0]), np.array([LENGTH], np.int32)))
    assert kv.held[0] == LENGTH // SIZE == kv.table.shape[1]
    kv.release(0, made)
    assert kv.pool.free == 16


# -- sharing ----------------------------------------------------------------


@pytest.mark.parametrize("common", range(6))
def test_leading_blocks_that_others_hold_are_counted(common: int) -> None:
    kv = cache()
    alone = put(kv, 0, TEXT[:22])
    assert kv.shared(0) == 0
    put(kv, 1, [*TEXT[: common * SIZE], 1, 2])
    assert (kv.shared(0), kv.shared(1)) == (common, common)
    kv.release(0, alone)
    assert kv.shared(1) == 0


def test_blocks_that_only_some_slots_hold_are_told() -> None:
    kv = cache()
    put(kv, 0, TEXT[:10])  # 0, 1, 2
    put(kv, 1, [*TEXT[:4], 1, 2])  # 0, 3
    put(kv, 2, [*TEXT[:8], 1])  # 0, 1, 4
    assert [kv.held_only_by([slot]) for slot in (0, 1, 2, 3)] == [{2}, {3}, {4}, set()]
    assert kv.held_only_by([0, 1]) == {2, 3}
    assert kv.held_only_by([0, 2]) == {1, 2, 4}
    assert kv.held_only_by([0, 1, 2]) == {0, 1, 2, 3, 4}
    assert kv.held_only_by([]) == set()


def test_an_empty_slot_shares_nothing() -> None:
    assert cache().shared(0) == 0


# -- sealing ----------------------------------------------------------------


def test_only_blocks_that_are_full_become_findable() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:12])
    kv.attach(0, made, MISS, 12)
    for tokens, found in ((3, 0), (4, 4), (7, 4), (12, 8)):
        kv.seal(0, made, tokens, None)
        assert kv.lookup(sequence(kv, TEXT[:12])).tokens == found
        assert kv.sealed[0] == tokens // SIZE


def test_sealing_less_than_before_changes_nothing() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:12])
    kv.seal(0, made, 4, None)
    assert kv.sealed[0] == 3
    kv.check()


def test_no_more_is_sealed_than_has_a_key() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:6])
    kv.attach(0, made, MISS, 6)
    kv.seal(0, made, 8, None)  # positions handed out whose tokens nobody knows yet
    assert kv.sealed[0] == 1


def test_a_step_that_failed_leaves_nothing_findable_that_it_was_to_fill() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:16])
    kv.attach(0, made, MISS, 16)
    kv.seal(0, made, 4, step=1)
    kv.seal(0, made, 8, step=2)
    kv.seal(0, made, 12, step=2)
    kv.seal(0, made, 16, step=3)
    kv.confirm(1)
    kv.retract()
    kv.check()
    assert kv.lookup(sequence(kv, [*TEXT[:16], 1])).tokens == 4


def test_steps_that_were_confirmed_are_not_taken_back() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:12])
    kv.attach(0, made, MISS, 12)
    for step, tokens in ((1, 4), (2, 8), (5, 12)):
        kv.seal(0, made, tokens, step)
    kv.confirm(4)
    kv.retract()
    assert kv.lookup(sequence(kv, [*TEXT[:12], 1])).tokens == 8
    kv.retract()  # nothing is pending any more
    assert kv.lookup(sequence(kv, [*TEXT[:12], 1])).tokens == 8


def test_what_was_computed_for_sure_is_not_taken_back() -> None:
    kv = cache()
    admit(kv, 0, sequence(kv, TEXT[:8]), step=None)
    kv.retract()
    assert kv.lookup(sequence(kv, TEXT[:9])).tokens == 8


def test_a_failed_step_takes_back_seals_of_sequences_that_left_since() -> None:
    kv = cache(blocks=4)
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=1)
    kv.release(0, made)
    kv.retract()
    kv.check()
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS
    assert kv.pool.take(2) == [0, 1]  # blank again, so they are reused first


def test_a_failed_step_leaves_a_block_alone_that_has_other_content_by_now() -> None:
    kv = cache(blocks=2)
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=1)
    kv.release(0, made)
    put(kv, 1, [1, 2, 3, 4, 5])
    kv.retract()
    kv.check()
    assert kv.lookup(sequence(kv, [1, 2, 3, 4, 5])).tokens == 4


def test_a_failed_step_keeps_the_twin_that_was_computed_before() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    admit(kv, 1, sequence(kv, TEXT[:8]), step=1)  # computes the last block again
    assert kv.blocks(1) == [0, 2]
    kv.retract()
    assert kv.lookup(sequence(kv, TEXT[:9])) == Hit((0, 1), 8)


def test_two_copies_of_one_content_are_found_while_one_is_left() -> None:
    kv = cache()
    first = put(kv, 0, TEXT[:8])
    second = put(kv, 1, TEXT[:8])
    assert (kv.blocks(0), kv.blocks(1)) == ([0, 1], [0, 2])
    kv.release(0, first)
    kv.release(1, second)
    kv.pool.take(13)  # the blank ones
    kv.pool.take(1)  # the first copy, least recently used
    assert kv.lookup(sequence(kv, TEXT[:9])) == Hit((0, 2), 8)


# -- blocks without a key ---------------------------------------------------


def unnamed(kv: KVCache, tokens: list[int], slot: int = 0) -> Sequence:
    """A resident that has filled its blocks, which nobody has looked for."""
    request = Request(f"u{slot}{len(tokens)}", tokens)  # pyright: ignore[reportArgumentType]
    made = Sequence(request, -1, LENGTH, 0.0, request.prompt)
    kv.attach(slot, made, kv.lookup(made), len(tokens))
    kv.check()
    return made


def asked(kv: KVCache, newcomer: Sequence) -> list[int]:
    """The residents that a lookup asks for their keys."""
    slots: list[int] = []

    def ask(slot: int) -> bool:
        slots.append(slot)
        return False

    kv.lookup(newcomer, ask)
    return slots


def test_a_lookup_asks_those_who_may_go_on_where_it_ends() -> None:
    kv = cache()
    put(kv, 0, TEXT[:6])
    put(kv, 1, TEXT[:10])
    assert asked(kv, sequence(kv, TEXT[:20])) == [1]
    assert asked(kv, sequence(kv, [*TEXT[:4], 1, 2, 3, 4, 5])) == [0]


def test_of_those_whose_next_block_is_known_only_equal_ones_are_asked() -> None:
    kv = cache()
    unnamed(kv, TEXT[:9], slot=0)
    unnamed(kv, [7, *TEXT[1:9]], slot=1)
    assert asked(kv, sequence(kv, TEXT[:6])) == [0]
    assert asked(kv, sequence(kv, [7, *TEXT[1:6]])) == [1]
    assert asked(kv, sequence(kv, [8, *TEXT[1:6]])) == []


def test_those_who_have_filled_nothing_are_asked_by_everyone_of_their_salt() -> None:
    kv = cache()
    put(kv, 0, TEXT[:3])
    put(kv, 1, TEXT[:2])
    put(kv, 2, TEXT[:2], cache_salt="pepper")
    assert asked(kv, sequence(kv, TEXT[:8])) == [0, 1]
    assert asked(kv, sequence(kv, TEXT[:8], cache_salt="pepper")) == [2]


def test_nobody_is_asked_behind_a_hit_that_could_not_be_longer() -> None:
    kv = cache()
    put(kv, 0, TEXT[:10])
    assert asked(kv, sequence(kv, TEXT[:12])) == []
    assert asked(kv, sequence(kv, TEXT[:13])) == [0]
    put(kv, 1, [7])
    assert asked(kv, sequence(kv, [1, 2, 3, 4])) == []
    assert asked(kv, sequence(kv, [1, 2, 3, 4, 5])) == [1]


def test_a_lookup_goes_on_in_what_it_made_somebody_name() -> None:
    kv = cache()
    made = unnamed(kv, TEXT[:11])

    def name(slot: int) -> bool:
        if kv.sealed[slot]:
            return False
        kv.name(made)
        kv.seal(slot, made, 8, None)
        return True

    newcomer = sequence(kv, TEXT[:20])
    assert kv.lookup(newcomer) == MISS
    assert kv.lookup(newcomer, name).tokens == 8


def test_what_was_left_behind_gets_keys_when_somebody_looks() -> None:
    kv = cache()
    made = unnamed(kv, TEXT[:11])
    kv.release(0, made, 11)
    (run,) = kv.unnamed.runs()
    assert (made.keys[1:], run.blocks, kv.pool.cached) == ([], [0, 1], 2)
    kv.check()
    assert kv.lookup(sequence(kv, [*TEXT[:4], 9, 9, 9, 9, 9])) == Hit((0,), 4)
    assert kv.unnamed.runs() == []
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0, 1), 8)
    kv.check()


def test_what_was_left_behind_without_an_item_is_not_found_with_one() -> None:
    kv = cache()
    kv.release(0, unnamed(kv, TEXT[:11]), 11)
    pictured = Request("p", TEXT[:11], items=(Item("cat", 1, 2),))  # pyright: ignore[reportArgumentType]
    made = Sequence(pictured, -1, LENGTH, 0.0, pictured.prompt)
    assert kv.lookup(made) == MISS
    kv.attach(0, made, MISS, 11)
    kv.release(0, made, 11)
    assert kv.lookup(sequence(kv, TEXT[:11])) == Hit((0, 1), 8)
    assert kv.lookup(sequence(kv, TEXT[:11], items=pictured.items)).blocks == (2, 3)
    kv.check()


def test_what_was_left_behind_with_an_item_is_found_with_it_alone() -> None:
    kv = cache()
    pictured = Request("p", TEXT[:11], items=(Item("cat", 1, 2),))  # pyright: ignore[reportArgumentType]
    made = Sequence(pictured, -1, LENGTH, 0.0, pictured.prompt)
    kv.attach(0, made, kv.lookup(made), 11)
    kv.release(0, made, 11)
    assert kv.lookup(sequence(kv, TEXT[:11])) == MISS
    assert kv.lookup(sequence(kv, TEXT[:11], items=pictured.items)) == Hit((0, 1), 8)
    kv.check()


def test_of_equal_runs_all_get_keys_at_once() -> None:
    kv = cache()
    first, second = unnamed(kv, TEXT[:9], slot=0), unnamed(kv, TEXT[:13], slot=1)
    kv.release(0, first, 9)
    kv.release(1, second, 13)
    assert kv.lookup(sequence(kv, TEXT[:20])).tokens == 12
    assert kv.unnamed.runs() == []
    kv.check()


def test_what_somebody_left_behind_is_found_before_what_came_after_him() -> None:
    kv = cache()
    first, second = unnamed(kv, TEXT[:9], slot=0), unnamed(kv, TEXT[:9], slot=1)
    kv.release(0, first, 9)

    def name(slot: int) -> bool:
        kv.name(second)
        kv.seal(slot, second, 8, None)
        return True

    assert kv.lookup(sequence(kv, TEXT[:9]), name) == Hit((0, 1), 8)
    kv.check()


def test_only_what_was_computed_is_left_behind() -> None:
    kv = cache()
    kv.release(0, unnamed(kv, TEXT[:11]), 7)
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0,), 4)
    kv.release(0, unnamed(kv, [7] * 11), 3)
    assert kv.unnamed.runs() == []
    kv.check()


def test_of_a_run_the_deepest_block_is_reused_first() -> None:
    kv = cache(blocks=4)
    kv.release(0, unnamed(kv, TEXT[:13]), 13)
    (run,) = kv.unnamed.runs()
    assert kv.pool.take(2) == [3, 2]  # the one without content, then the last one with it
    assert run.blocks == [0, 1]
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0, 1), 8)


def test_a_run_that_is_used_up_is_forgotten() -> None:
    kv = cache(blocks=3)
    kv.release(0, unnamed(kv, TEXT[:9]), 9)
    kv.pool.take(3)
    assert kv.unnamed.runs() == []
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS


def test_nothing_is_left_of_those_who_are_gone() -> None:
    kv = cache(blocks=3)
    kv.release(0, unnamed(kv, TEXT[:9]), 9)
    kv.release(1, put(kv, 1, [7, 8]))
    kv.pool.take(3)
    assert kv.unnamed._listed == {}


def test_a_run_whose_first_block_was_found_elsewhere_is_found_behind_it() -> None:
    """Two computed the first block; only one of them was looked for before it left."""
    kv = cache()
    first, second = unnamed(kv, TEXT[:11], slot=0), unnamed(kv, TEXT[:5], slot=1)
    assert kv.rivals == {0, 1}
    kv.release(0, first, 11)
    kv.name(second)
    kv.seal(1, second, 4, None)
    assert kv.lookup(sequence(kv, TEXT[:20])).tokens == 8
    kv.check()


def test_a_run_that_gets_keys_brings_those_behind_its_blocks_along() -> None:
    kv = cache()
    first, second = unnamed(kv, TEXT[:13], slot=0), unnamed(kv, TEXT[:9], slot=1)
    kv.name(first)
    kv.seal(0, first, 4, None)
    kv.release(1, second, 9)  # begins with what has a key by now, so that no lookup comes by
    kv.release(0, first, 13)  # begins behind that
    unnamed(kv, TEXT[:4], slot=2)
    assert kv.unnamed.runs() == []
    assert kv.lookup(sequence(kv, TEXT[:20])).tokens == 12
    kv.check()


def test_who_has_left_is_no_rival() -> None:
    kv = cache()
    first, second = unnamed(kv, TEXT[:11], slot=0), unnamed(kv, TEXT[:5], slot=1)
    kv.release(0, first, 11)
    assert kv.rivals == {1}
    kv.release(1, second, 5)
    assert kv.rivals == set()


def test_who_computes_what_has_a_key_already_is_a_rival() -> None:
    kv = cache()
    put(kv, 0, TEXT[:4])
    unnamed(kv, TEXT[:4], slot=1)  # its last token is computed in any case
    assert kv.rivals == {1}
    kv.check()


def test_with_somebody_listening_what_is_left_behind_gets_keys_at_once() -> None:
    kv = cache(enable_kv_cache_events=True)
    made = unnamed(kv, TEXT[:11])
    kv.release(0, made, 11)
    assert (len(kv.events or ()), kv.unnamed.runs()) == (2, [])
    kv.check()


def test_a_reset_forgets_runs() -> None:
    kv = cache()
    kv.release(0, unnamed(kv, TEXT[:11]), 11)
    assert kv.reset()
    assert kv.lookup(sequence(kv, TEXT[:20])) == MISS
    assert (kv.unnamed.runs(), kv.pool.cached) == ([], 0)
    kv.check()


# -- resetting and telling --------------------------------------------------


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
    kv.retract()
    assert kv.lookup(sequence(kv, TEXT[:5])).tokens == 4


def test_a_reset_without_listeners_is_silent() -> None:
    kv = cache()
    assert kv.reset()
    assert kv.events is None


def test_stored_and_removed_blocks_are_told_exactly() -> None:
    kv = cache(blocks=3, enable_kv_cache_events=True)
    made = cached(kv, TEXT[:9], adapter="lora")
    k0, k1 = made.keys
    assert kv.events == [
        BlockStored(k0, None, (100, 101, 102, 103), "lora"),
        BlockStored(k1, k0, (104, 105, 106, 107), "lora"),
    ]
    kv.events.clear()
    new = cached(kv, [1, 2, 3, 4, 5])  # takes the blank block and the deepest one
    assert kv.events == [BlockRemoved(k1), BlockStored(new.keys[0], None, (1, 2, 3, 4), "")]


def test_a_content_is_told_once_while_any_copy_of_it_lives() -> None:
    kv = cache(blocks=3, enable_kv_cache_events=True)
    assert kv.events is not None
    first, second = put(kv, 0, TEXT[:8]), put(kv, 1, TEXT[:8])
    k0, k1 = first.keys
    assert [event.key for event in kv.events if isinstance(event, BlockStored)] == [k0, k1]
    kv.events.clear()
    kv.release(0, first)
    kv.release(1, second)
    kv.pool.take(1)
    assert kv.events == []  # one copy of the second block is left
    kv.pool.take(1)
    assert kv.events == [BlockRemoved(k1)]
    kv.pool.take(1)
    assert kv.events == [BlockRemoved(k1), BlockRemoved(k0)]


def test_blocks_of_outputs_are_told_with_the_tokens_that_came_out() -> None:
    kv = cache(enable_kv_cache_events=True)
    assert kv.events is not None
    made = put(kv, 0, TEXT[:6])
    extend(kv, 0, made, [1, 2])
    assert kv.events[-1] == BlockStored(made.keys[1], made.keys[0], (104, 105, 1, 2), "")


def test_what_a_failed_step_was_to_fill_is_told_as_removed() -> None:
    kv = cache(enable_kv_cache_events=True)
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=1)
    assert kv.events is not None
    kv.events.clear()
    kv.retract()
    assert kv.events == [BlockRemoved(made.keys[1]), BlockRemoved(made.keys[0])]


# -- forking ----------------------------------------------------------------


def forked(kv: KVCache, tokens: int, length: int = 10) -> tuple[Sequence, Sequence, Pairs]:
    """A sequence in slot 0, and one in slot 1 that begins with its first `tokens`."""
    parent = put(kv, 0, TEXT[:length])
    child = sequence(kv, TEXT[:length])
    copies = kv.fork(0, 1, child, tokens)
    kv.check()
    return parent, child, copies


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
    assert (kv.blocks(0), kv.blocks(1), found) == ([0, 1, 2], blocks, copies)
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
    assert (kv.sealed[1], kv.tail(1, child)) == (2, parent.keys[1])
    extend(kv, 1, child, [1, 2, 3])
    assert (kv.sealed[1], len(kv.blocks(1))) == (3, 4)
    assert kv.lookup(sequence(kv, [*TEXT[:10], 1, 2, 3])).blocks == tuple(kv.blocks(1)[:3])
    assert kv.lookup(sequence(kv, [*TEXT[:10], 4, 5, 6])).blocks == (0, 1)


def test_what_a_fork_generates_is_looked_for_behind_what_it_shares() -> None:
    kv = cache()
    _, child, _ = forked(kv, 9)
    longer = sequence(kv, TEXT[:16])
    assert sorted(asked(kv, longer)) == [0, 1]
    kv.release(1, child)
    assert asked(kv, longer) == [0]


def test_a_fork_without_a_prefix_cache_shares_too() -> None:
    kv = cache(enable_prefix_caching=False)
    _, child, copies = forked(kv, 9)
    assert (kv.blocks(1), copies, kv.sealed[1]) == ([0, 1, 3], ((2, 3),), 0)
    kv.release(1, child)
    kv.check()


def test_a_slot_is_placed_only_when_it_is_empty() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:4])
    with pytest.raises(AssertionError, match="slot 0 already holds blocks"):
        kv.place(0, made, (1,), 0)


def test_blocks_that_are_held_already_are_mapped_as_they_are() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:9])
    blocks = tuple(kv.pool.take(3))
    kv.place(2, made, blocks, sealed=0)
    kv.check()
    assert (kv.blocks(2), kv.sealed[2], kv.pool.free) == ([0, 1, 2], 0, 13)
    kv.seal(2, made, 8, None)
    assert kv.lookup(made) == Hit((0, 1), 8)


def rebased(kv: KVCache, tokens: int) -> tuple[Sequence, Pairs]:
    """Two sequences that came from one, grew apart, and were joined again after `tokens`."""
    parent, child, _ = forked(kv, 9)
    extend(kv, 0, parent, list(range(50, 50 + tokens - 10)))
    extend(kv, 1, child, list(range(70, 70 + tokens - 10)))
    kv.unlist(1)
    child.keys, child.tokens = list(parent.keys), parent.tokens.copy()
    copies = kv.rebase(1, child, 0, tokens)
    kv.check()
    return child, copies


def test_a_beam_goes_on_from_another_and_keeps_its_block_for_what_comes_next() -> None:
    kv = cache()
    child, copies = rebased(kv, 15)
    assert kv.blocks(0) == [0, 1, 2, 4]
    assert kv.blocks(1) == [0, 1, 2, 5]
    assert copies == ((4, 5),)
    assert (kv.sealed[1], kv.tail(1, child)) == (3, child.keys[2])
    assert kv.pool.free == 16 - 5  # the block in which it had grown apart is free again


def test_of_what_a_beam_lets_go_the_deepest_block_is_reused_first() -> None:
    kv = cache()
    rebased(kv, 20)
    assert kv.blocks(1) == kv.blocks(0)
    assert kv.pool.take(kv.pool.free)[-3:] == [7, 6, 3]  # the first is where it had grown apart


def test_a_beam_has_as_much_sealed_as_the_one_it_goes_on_from() -> None:
    kv = cache()
    parent, child, _ = forked(kv, 9)
    extend(kv, 0, parent, [50, 51])
    kv.unlist(1)
    child.keys, child.tokens = list(parent.keys), parent.tokens.copy()
    kv.grow(np.array([1]), np.array([1], np.int32))
    assert kv.rebase(1, child, 0, 12) == ()
    assert (kv.sealed[1], kv.tail(1, child)) == (3, child.keys[2])
    kv.check()


def test_at_the_edge_of_a_block_nothing_is_copied() -> None:
    kv = cache()
    child, copies = rebased(kv, 16)
    assert (kv.blocks(1), copies) == ([0, 1, 2, 4], ())
    extend(kv, 1, child, [1, 2, 3, 4])
    assert kv.lookup(sequence(kv, [*child.tokens.tolist(), 5])).tokens == 20
    kv.release(1, child)
    kv.check()


def test_a_beam_within_the_first_block_copies_all_there_is() -> None:
    kv = cache()
    parent, child = put(kv, 0, TEXT[:3]), sequence(kv, TEXT[:3])
    assert kv.fork(0, 1, child, 2) == ((0, 1),)
    kv.unlist(1)
    child.keys = list(parent.keys)
    assert kv.rebase(1, child, 0, 3) == ((0, 1),)
    assert (kv.blocks(0), kv.blocks(1)) == ([0], [1])
    kv.check()


def test_beams_without_a_prefix_cache_share_too() -> None:
    kv = cache(enable_prefix_caching=False)
    child, copies = rebased(kv, 15)
    assert (kv.blocks(1), copies) == ([0, 1, 2, 5], ((4, 5),))
    kv.release(1, child)
    kv.check()


def test_what_two_hold_alone_is_free_only_when_both_are_gone() -> None:
    kv = cache()
    forked(kv, 9)
    assert kv.held_only_by([0]) == {2}
    assert kv.held_only_by([1]) == {3}
    assert kv.held_only_by([0, 1]) == {0, 1, 2, 3}


# -- the checker ------------------------------------------------------------


def test_the_checker_wants_what_is_sealed_to_be_held() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.sealed[0] = 3
    with pytest.raises(AssertionError):
        kv.check()


@pytest.mark.parametrize("block", [0, 15])
def test_the_checker_counts_the_holders_of_every_table_entry(block: int) -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.table[0, 1] = block  # its own first block, or one that is free
    with pytest.raises(AssertionError, match=r"block [01] leaked"):
        kv.check()


def test_the_checker_counts_fences_as_holders() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.fences.add_copies(1, ((1, 1),))
    kv.check()
    kv.pool.drop([1])
    with pytest.raises(AssertionError, match="block 1 leaked"):
        kv.check()


def test_the_checker_misses_no_slot() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    kv.held[0] = 0
    with pytest.raises(AssertionError, match="block 0 leaked"):
        kv.check()


def test_seals_of_one_owner_alone_are_taken_back() -> None:
    kv = cache()
    first, second = sequence(kv, TEXT[:8]), sequence(kv, [9, *TEXT[:8]])
    admit(kv, 0, first, step=1)
    admit(kv, 1, second, step=1)
    kv.release(0, first)
    admit(kv, 0, sequence(kv, [8, *TEXT[:8]]), step=2)
    found = kv.retract((0, 0))
    kv.check()
    assert list(found.values()) == first.keys[::-1]
    assert kv.retract((0, 0)) == {}
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS
    for other in (8, 9):
        assert kv.lookup(sequence(kv, [other, *TEXT[:8], 1])).tokens == 8


def test_seals_that_are_left_are_confirmed_step_by_step() -> None:
    kv = cache()
    admit(kv, 0, sequence(kv, TEXT[:4]), step=1)
    admit(kv, 1, sequence(kv, [8, *TEXT[:3]]), step=1)
    admit(kv, 2, last := sequence(kv, [9, *TEXT[:3]]), step=2)
    kv.retract((0, 0))
    kv.confirm(1)
    assert list(kv.retract().values()) == last.keys
    assert kv.lookup(sequence(kv, [8, *TEXT[:4]])).tokens == 4
