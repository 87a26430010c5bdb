"""The index of content: sealed blocks, blocks without a key, pending seals and events."""

from paceline.core.events import BlockRemoved, BlockStored
from paceline.core.multimodal import ImageInput
from paceline.core.request import Request, Sequence
from paceline.kv.hit import MISS, Hit
from tests.kept import kept
from tests.kv.support import (
    LENGTH,
    SIZE,
    TEXT,
    admit,
    cache,
    cached,
    extend,
    put,
    residents_sealed_for,
    sequence,
    unkeyed,
)

# -- sealing -------------------------------------------------------------------


def test_only_blocks_that_are_full_become_findable() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:12])
    kv.attach(0, made, MISS, 12)
    for tokens, found in ((3, 0), (4, 4), (7, 4), (12, 8)):
        kv.seal(0, made, tokens, None)
        assert kv.lookup(sequence(kv, TEXT[:12])).tokens == found
        assert kv.index.sealed[0] == tokens // SIZE


def test_sealing_less_than_before_changes_nothing() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:12])
    kv.seal(0, made, 4, None)
    assert kv.index.sealed[0] == 3
    kv.check()


def test_no_more_is_sealed_than_has_a_key() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:6])
    kv.attach(0, made, MISS, 6)
    kv.seal(0, made, 8, None)  # positions handed out whose tokens nobody knows yet
    assert kv.index.sealed[0] == 1


def test_a_step_that_failed_leaves_nothing_findable_that_it_was_to_fill() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:16])
    kv.attach(0, made, MISS, 16)
    kv.seal(0, made, 4, step=1)
    kv.seal(0, made, 8, step=2)
    kv.seal(0, made, 12, step=2)
    kv.seal(0, made, 16, step=3)
    kv.confirm(1)
    kv.index.retract()
    kv.check()
    assert kv.lookup(sequence(kv, [*TEXT[:16], 1])).tokens == 4


def test_steps_that_were_confirmed_are_not_taken_back() -> None:
    kv = cache()
    made = sequence(kv, TEXT[:12])
    kv.attach(0, made, MISS, 12)
    for step, tokens in ((1, 4), (2, 8), (5, 12)):
        kv.seal(0, made, tokens, step)
    kv.confirm(4)
    kv.index.retract()
    assert kv.lookup(sequence(kv, [*TEXT[:12], 1])).tokens == 8
    kv.index.retract()  # nothing is pending any more
    assert kv.lookup(sequence(kv, [*TEXT[:12], 1])).tokens == 8


def test_what_was_computed_for_sure_is_not_taken_back() -> None:
    kv = cache()
    admit(kv, 0, sequence(kv, TEXT[:8]), step=None)
    kv.index.retract()
    assert kv.lookup(sequence(kv, TEXT[:9])).tokens == 8


def test_a_failed_step_takes_back_seals_of_sequences_that_left_since() -> None:
    kv = cache(blocks=4)
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=1)
    kv.release(0, made)
    kv.index.retract()
    kv.check()
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS
    assert kv.pool.take(2) == [0, 1]  # blank again, so they are reused first


def test_a_failed_step_leaves_a_block_alone_that_has_other_content_by_now() -> None:
    kv = cache(blocks=2)
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=1)
    kv.release(0, made)
    put(kv, 1, [1, 2, 3, 4, 5])
    kv.index.retract()
    kv.check()
    assert kv.lookup(sequence(kv, [1, 2, 3, 4, 5])).tokens == 4


def test_a_failed_step_keeps_the_twin_that_was_computed_before() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    admit(kv, 1, sequence(kv, TEXT[:8]), step=1)  # computes the last block again
    assert kv.tables.blocks(1) == [0, 2]
    kv.index.retract()
    assert kv.lookup(sequence(kv, TEXT[:9])) == Hit((0, 1), 8)


def test_two_copies_of_one_content_are_found_while_one_is_left() -> None:
    kv = cache()
    first = put(kv, 0, TEXT[:8])
    second = put(kv, 1, TEXT[:8])
    assert (kv.tables.blocks(0), kv.tables.blocks(1)) == ([0, 1], [0, 2])
    kv.release(0, first)
    kv.release(1, second)
    kv.pool.take(13)  # the blank ones
    kv.pool.take(1)  # the first copy, least recently used
    assert kv.lookup(sequence(kv, TEXT[:9])) == Hit((0, 2), 8)


# -- blocks without a key ------------------------------------------------------


def test_a_lookup_seals_residents_that_may_continue_where_it_ends() -> None:
    kv = cache()
    put(kv, 0, TEXT[:6])
    put(kv, 1, TEXT[:10])
    assert residents_sealed_for(kv, sequence(kv, TEXT[:20])) == [1]
    assert residents_sealed_for(kv, sequence(kv, [*TEXT[:4], 1, 2, 3, 4, 5])) == [0]


def test_of_residents_whose_next_block_is_known_only_equal_ones_are_sealed() -> None:
    kv = cache()
    unkeyed(kv, TEXT[:9], slot=0)
    unkeyed(kv, [7, *TEXT[1:9]], slot=1)
    assert residents_sealed_for(kv, sequence(kv, TEXT[:6])) == [0]
    assert residents_sealed_for(kv, sequence(kv, [7, *TEXT[1:6]])) == [1]
    assert residents_sealed_for(kv, sequence(kv, [8, *TEXT[1:6]])) == []


def test_residents_that_have_filled_nothing_are_sealed_for_every_lookup_of_their_salt() -> None:
    kv = cache()
    put(kv, 0, TEXT[:3])
    put(kv, 1, TEXT[:2])
    put(kv, 2, TEXT[:2], cache_salt="pepper")
    assert residents_sealed_for(kv, sequence(kv, TEXT[:8])) == [0, 1]
    assert residents_sealed_for(kv, sequence(kv, TEXT[:8], cache_salt="pepper")) == [2]


def test_no_resident_is_sealed_behind_a_hit_that_could_not_be_longer() -> None:
    kv = cache()
    put(kv, 0, TEXT[:10])
    assert residents_sealed_for(kv, sequence(kv, TEXT[:12])) == []
    assert residents_sealed_for(kv, sequence(kv, TEXT[:13])) == [0]
    put(kv, 1, [7])
    assert residents_sealed_for(kv, sequence(kv, [1, 2, 3, 4])) == []
    assert residents_sealed_for(kv, sequence(kv, [1, 2, 3, 4, 5])) == [1]


def test_a_lookup_continues_in_the_blocks_it_had_sealed() -> None:
    kv = cache()
    made = unkeyed(kv, TEXT[:11])

    def seal(slot: int) -> bool:
        if kv.index.sealed[slot]:
            return False
        kv.index.extend_keys(made)
        kv.seal(slot, made, 8, None)
        return True

    newcomer = sequence(kv, TEXT[:20])
    assert kv.lookup(newcomer) == MISS
    assert kv.lookup(newcomer, seal).tokens == 8


def test_a_run_gets_keys_when_a_lookup_reaches_it() -> None:
    kv = cache()
    made = unkeyed(kv, TEXT[:11])
    kv.release(0, made, 11)
    (run,) = kv.index.unkeyed.runs()
    assert (made.keys[1:], run.blocks, kv.pool.cached) == ([], [0, 1], 2)
    kv.check()
    assert kv.lookup(sequence(kv, [*TEXT[:4], 9, 9, 9, 9, 9])) == Hit((0,), 4)
    assert kv.index.unkeyed.runs() == []
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0, 1), 8)
    kv.check()


def test_a_run_without_an_image_is_not_found_with_one() -> None:
    kv = cache()
    kv.release(0, unkeyed(kv, TEXT[:11]), 11)
    pictured = Request("p", TEXT[:11], images=(ImageInput("cat", 1, 2),))  # pyright: ignore[reportArgumentType]
    made = Sequence(pictured, -1, LENGTH, 0.0, pictured.prompt)
    assert kv.lookup(made) == MISS
    kv.attach(0, made, MISS, 11)
    kv.release(0, made, 11)
    assert kv.lookup(sequence(kv, TEXT[:11])) == Hit((0, 1), 8)
    assert kv.lookup(sequence(kv, TEXT[:11], images=pictured.images)).device == (2, 3)
    kv.check()


def test_content_with_an_image_is_found_with_it_alone() -> None:
    kv = cache()
    pictured = Request("p", TEXT[:11], images=(ImageInput("cat", 1, 2),))  # pyright: ignore[reportArgumentType]
    made = Sequence(pictured, -1, LENGTH, 0.0, pictured.prompt)
    kv.attach(0, made, kv.lookup(made), 11)
    kv.release(0, made, 11)
    assert kv.lookup(sequence(kv, TEXT[:11])) == MISS
    assert kv.lookup(sequence(kv, TEXT[:11], images=pictured.images)) == Hit((0, 1), 8)
    kv.check()


def test_of_equal_runs_all_get_keys_at_once() -> None:
    kv = cache()
    first, second = unkeyed(kv, TEXT[:9], slot=0), unkeyed(kv, TEXT[:13], slot=1)
    kv.release(0, first, 9)
    kv.release(1, second, 13)
    assert kv.lookup(sequence(kv, TEXT[:20])).tokens == 12
    assert kv.index.unkeyed.runs() == []
    kv.check()


def test_a_run_is_found_before_the_equal_blocks_of_a_later_resident() -> None:
    kv = cache()
    first, second = unkeyed(kv, TEXT[:9], slot=0), unkeyed(kv, TEXT[:9], slot=1)
    kv.release(0, first, 9)

    def seal(slot: int) -> bool:
        kv.index.extend_keys(second)
        kv.seal(slot, second, 8, None)
        return True

    assert kv.lookup(sequence(kv, TEXT[:9]), seal) == Hit((0, 1), 8)
    kv.check()


def test_only_computed_blocks_are_left_as_a_run() -> None:
    kv = cache()
    kv.release(0, unkeyed(kv, TEXT[:11]), 7)
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0,), 4)
    kv.release(0, unkeyed(kv, [7] * 11), 3)
    assert kv.index.unkeyed.runs() == []
    kv.check()


def test_of_a_run_the_deepest_block_is_reused_first() -> None:
    kv = cache(blocks=4)
    kv.release(0, unkeyed(kv, TEXT[:13]), 13)
    (run,) = kv.index.unkeyed.runs()
    assert kv.pool.take(2) == [3, 2]  # the one without content, then the last one with it
    assert run.blocks == [0, 1]
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((0, 1), 8)


def test_a_run_that_is_used_up_is_forgotten() -> None:
    kv = cache(blocks=3)
    kv.release(0, unkeyed(kv, TEXT[:9]), 9)
    kv.pool.take(3)
    assert kv.index.unkeyed.runs() == []
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS


def test_nothing_stays_listed_when_residents_and_runs_are_gone() -> None:
    kv = cache(blocks=3)
    kv.release(0, unkeyed(kv, TEXT[:9]), 9)
    kv.release(1, put(kv, 1, [7, 8]))
    kv.pool.take(3)
    assert kept(kv.index.unkeyed) == 0


def test_a_run_whose_first_block_was_found_elsewhere_is_found_behind_it() -> None:
    """Two computed the first block; only one of them was looked for before it left."""
    kv = cache()
    first, second = unkeyed(kv, TEXT[:11], slot=0), unkeyed(kv, TEXT[:5], slot=1)
    assert kv.index.rivals == {0, 1}
    kv.release(0, first, 11)
    kv.index.extend_keys(second)
    kv.seal(1, second, 4, None)
    assert kv.lookup(sequence(kv, TEXT[:20])).tokens == 8
    kv.check()


def test_a_run_that_gets_keys_lets_equal_runs_get_theirs() -> None:
    kv = cache()
    first, second = unkeyed(kv, TEXT[:13], slot=0), unkeyed(kv, TEXT[:9], slot=1)
    kv.index.extend_keys(first)
    kv.seal(0, first, 4, None)
    kv.release(1, second, 9)  # begins with what has a key by now, so that no lookup comes by
    kv.release(0, first, 13)  # begins behind that
    unkeyed(kv, TEXT[:4], slot=2)
    assert kv.index.unkeyed.runs() == []
    assert kv.lookup(sequence(kv, TEXT[:20])).tokens == 12
    kv.check()


def test_a_resident_that_left_is_no_rival() -> None:
    kv = cache()
    first, second = unkeyed(kv, TEXT[:11], slot=0), unkeyed(kv, TEXT[:5], slot=1)
    kv.release(0, first, 11)
    assert kv.index.rivals == {1}
    kv.release(1, second, 5)
    assert kv.index.rivals == set()


def test_a_resident_that_computes_content_with_a_key_is_a_rival() -> None:
    kv = cache()
    put(kv, 0, TEXT[:4])
    unkeyed(kv, TEXT[:4], slot=1)  # its last token is computed in any case
    assert kv.index.rivals == {1}
    kv.check()


def test_with_events_blocks_get_keys_as_their_sequence_leaves() -> None:
    kv = cache(enable_kv_cache_events=True)
    made = unkeyed(kv, TEXT[:11])
    kv.release(0, made, 11)
    assert (len(kv.events or ()), kv.index.unkeyed.runs()) == (2, [])
    kv.check()


def test_a_reset_forgets_runs() -> None:
    kv = cache()
    kv.release(0, unkeyed(kv, TEXT[:11]), 11)
    assert kv.reset()
    assert kv.lookup(sequence(kv, TEXT[:20])) == MISS
    assert (kv.index.unkeyed.runs(), kv.pool.cached) == ([], 0)
    kv.check()


# -- events --------------------------------------------------------------------


def test_stored_and_removed_blocks_are_reported_exactly() -> None:
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


def test_a_content_is_reported_once_while_any_copy_of_it_lives() -> None:
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


def test_blocks_of_outputs_are_reported_with_the_tokens_that_were_sampled() -> None:
    kv = cache(enable_kv_cache_events=True)
    assert kv.events is not None
    made = put(kv, 0, TEXT[:6])
    extend(kv, 0, made, [1, 2])
    assert kv.events[-1] == BlockStored(made.keys[1], made.keys[0], (104, 105, 1, 2), "")


def test_what_a_failed_step_was_to_fill_is_reported_as_removed() -> None:
    kv = cache(enable_kv_cache_events=True)
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=1)
    assert kv.events is not None
    kv.events.clear()
    kv.index.retract()
    assert kv.events == [BlockRemoved(made.keys[1]), BlockRemoved(made.keys[0])]


# -- pending seals -------------------------------------------------------------


def test_seals_of_one_owner_alone_are_taken_back() -> None:
    kv = cache()
    first, second = sequence(kv, TEXT[:8]), sequence(kv, [9, *TEXT[:8]])
    admit(kv, 0, first, step=1)
    admit(kv, 1, second, step=1)
    kv.release(0, first)
    admit(kv, 0, sequence(kv, [8, *TEXT[:8]]), step=2)
    found = kv.index.retract((0, 0))
    kv.check()
    assert list(found.values()) == first.keys[::-1]
    assert kv.index.retract((0, 0)) == {}
    assert kv.lookup(sequence(kv, TEXT[:9])) == MISS
    for other in (8, 9):
        assert kv.lookup(sequence(kv, [other, *TEXT[:8], 1])).tokens == 8


def test_seals_that_are_left_are_confirmed_step_by_step() -> None:
    kv = cache()
    admit(kv, 0, sequence(kv, TEXT[:4]), step=1)
    admit(kv, 1, sequence(kv, [8, *TEXT[:3]]), step=1)
    admit(kv, 2, last := sequence(kv, [9, *TEXT[:3]]), step=2)
    kv.index.retract((0, 0))
    kv.confirm(1)
    assert list(kv.index.retract().values()) == last.keys
    assert kv.lookup(sequence(kv, [8, *TEXT[:4]])).tokens == 4


def test_retracting_one_slot_keeps_the_order_of_the_others() -> None:
    kv = cache(16)
    for slot in range(3):
        one = sequence(kv, [slot] * 9)
        kv.attach(slot, one, kv.lookup(one), 9)
        kv.index.extend_keys(one)
        kv.seal(slot, one, 8, step=slot + 1)
    kv.index.retract((2, kv.index.epoch[2]))
    kv.confirm(1)  # the blocks of slot 0 are filled
    kv.index.retract()
    assert kv.lookup(sequence(kv, [0] * 9)).tokens == 8


def test_content_from_elsewhere_is_reported_and_found() -> None:
    kv = cache(enable_kv_cache_events=True)
    made = sequence(kv, TEXT[:9])
    kv.index.adopt(made, made.keys, blocks := kv.pool.take(2))
    kv.pool.drop(blocks)
    assert kv.events is not None
    assert [one.key for one in kv.events if isinstance(one, BlockStored)] == made.keys
    assert kv.lookup(sequence(kv, TEXT[:9])).tokens == 8
    kv.check()
