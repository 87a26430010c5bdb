"""Blocks: who holds them, which is reused next, and what can be found in them."""

from itertools import permutations
from typing import Any

import pytest

from paceline.core.events import BlockRemoved, CacheEvent
from paceline.core.settings.config import FreeOrder
from paceline.kv import pool as module
from paceline.kv.pool import LOT, BlockPool
from tests.kept import kept

K1, K2, K3 = b"k1", b"k2", b"k3"
BOTH: list[FreeOrder] = ["unsealed_first", "lru"]


def order(pool: BlockPool) -> list[int]:
    """The free blocks in the order in which they would be taken; empties the pool."""
    return pool.take(pool.free)


def filled(pool: BlockPool, *keys: bytes) -> list[int]:
    """Newly taken blocks with these contents."""
    blocks = pool.take(len(keys))
    pool.seal(blocks, keys)
    return blocks


@pytest.mark.parametrize("holders", [2, 300])
def test_what_blocks_are(holders: int) -> None:
    pool = BlockPool(5)
    cached, shared = filled(pool, K1, K2)
    (held,) = pool.take(1)
    pool.drop([cached])
    for _ in range(holders - 1):
        pool.hold([shared])
    assert (cached, shared, held) == (0, 1, 2)
    assert pool.kinds(0, 5).tolist() == [1, 3, 2, 0, 0]
    assert pool.kinds(1, 3).tolist() == [3, 2]


# -- taking and dropping ----------------------------------------------------


def test_a_new_pool_hands_out_its_blocks_by_number() -> None:
    pool = BlockPool(4)
    assert (pool.size, pool.free) == (4, 4)
    assert pool.take(2) == [0, 1]
    assert pool.take(0) == []
    assert pool.take(2) == [2, 3]
    assert pool.free == 0


def test_taking_more_than_is_free_is_our_fault_and_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.take(1)
    with pytest.raises(AssertionError, match="cannot take 3 blocks"):
        pool.take(3)
    assert pool.take(2) == [1, 2]


def test_a_taken_block_has_one_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    assert (pool.holders(block), pool.holders(1)) == (1, 0)


def test_a_block_is_free_when_its_last_holder_drops_it() -> None:
    pool = BlockPool(1)
    blocks = filled(pool, K1)
    pool.hold(blocks)
    pool.hold(blocks)
    for holders in (2, 1):
        pool.drop(blocks)
        assert (pool.holders(0), pool.free) == (holders, 0)
    pool.drop(blocks)
    assert (pool.holders(0), pool.free) == (0, 1)


@pytest.mark.parametrize("free_order", BOTH)
def test_dropping_a_block_twice_is_our_fault(free_order: FreeOrder) -> None:
    pool = BlockPool(2, free_order)
    blocks = pool.take(1)
    pool.drop(blocks)
    with pytest.raises(AssertionError, match="block 0 is dropped and has no holder"):
        pool.drop(blocks)


# -- the order of reuse -----------------------------------------------------


def test_blank_blocks_are_reused_first_and_last_in_first_out() -> None:
    pool = BlockPool(6)
    kept = filled(pool, K1, K2)  # 0, 1
    blank = pool.take(2)  # 2, 3
    pool.drop(kept)
    pool.drop(blank)
    assert order(pool) == [3, 2, 4, 5, 0, 1]


def test_blocks_with_content_are_reused_least_recently_used_first() -> None:
    pool = BlockPool(3)
    a, b, c = filled(pool, K1, K2, K3)
    pool.drop([b])
    pool.drop([c])
    pool.drop([a])
    pool.hold([b])  # used again, and by that the latest
    pool.drop([b])
    assert order(pool) == [c, a, b]


def test_no_more_is_evicted_than_blank_blocks_leave_to_take() -> None:
    pool = BlockPool(5)
    pool.drop(filled(pool, K1, K2, K3))
    assert pool.take(3) == [3, 4, 0]
    assert (pool.find([K1]), pool.find([K2, K3])) == ([], [1, 2])
    assert pool.free == 2


def test_of_one_drop_the_first_block_is_reused_first() -> None:
    pool = BlockPool(3)
    blocks = filled(pool, K1, K2, K3)
    pool.drop(reversed(blocks))  # the deepest first
    assert order(pool) == [2, 1, 0]


def test_in_plain_order_of_use_blank_blocks_queue_up_with_the_others() -> None:
    pool = BlockPool(6, "lru")
    kept = filled(pool, K1, K2)
    blank = pool.take(2)
    pool.drop(kept)
    pool.drop(blank)
    assert order(pool) == [4, 5, 0, 1, 2, 3]


def two_sequences_with_a_common_prefix(free_order: FreeOrder) -> BlockPool:
    """Three common full blocks and one partial block each, of ten; both released."""
    pool = BlockPool(10, free_order)
    one = pool.take(4)
    pool.seal(one[:3], [K1, K2, K3])
    hit = pool.find([K1, K2, K3])
    pool.hold(hit)
    other = hit + pool.take(1)
    pool.drop(reversed(one))
    pool.drop(reversed(other))
    return pool


def test_released_sequences_leave_unused_then_partial_then_common_blocks_deepest_first() -> None:
    assert order(two_sequences_with_a_common_prefix("lru")) == [5, 6, 7, 8, 9, 3, 4, 2, 1, 0]


def test_with_blank_blocks_first_the_partial_blocks_come_before_the_unused() -> None:
    pool = two_sequences_with_a_common_prefix("unsealed_first")
    assert order(pool) == [4, 3, 5, 6, 7, 8, 9, 2, 1, 0]


# -- finding ----------------------------------------------------------------


@pytest.mark.parametrize("free_order", BOTH)
def test_a_free_block_keeps_its_content_until_it_is_taken(free_order: FreeOrder) -> None:
    pool = BlockPool(2, free_order)
    blocks = filled(pool, K1)
    pool.drop(blocks)
    assert pool.find([K1]) == [0]
    pool.take(1)  # the other one
    assert pool.find([K1]) == [0]
    assert pool.take(1) == [0]
    assert pool.find([K1]) == []


def test_find_stops_at_the_first_gap() -> None:
    pool = BlockPool(3)
    filled(pool, K1, K3)
    assert pool.find([K1, K2, K3]) == [0]
    assert pool.find([K2]) == []
    assert pool.find([]) == []


MANY = [bytes([number]) for number in range(2 * LOT + 3)]


def test_many_keys_are_found_again_with_more_or_fewer_of_them() -> None:
    pool = BlockPool(len(MANY))
    blocks = filled(pool, *MANY)
    for end in (len(MANY), LOT - 1, LOT, LOT + 1, 2 * LOT, len(MANY)):
        assert pool.find(MANY[:end]) == blocks[:end]
        assert pool.find([*MANY[:end], K1]) == blocks[:end]
        assert pool.find(MANY[1:end]) == blocks[1:end]


def test_what_becomes_of_a_finding_does_not_change_what_is_found() -> None:
    pool = BlockPool(len(MANY))
    blocks = filled(pool, *MANY)
    for _ in range(3):
        pool.find(MANY).clear()
    assert pool.find(MANY) == blocks


@pytest.mark.parametrize("lost", [0, LOT - 1, LOT, len(MANY) - 1])
def test_many_keys_are_found_up_to_a_block_that_was_reused(lost: int) -> None:
    pool = BlockPool(len(MANY))
    blocks = filled(pool, *MANY)
    assert pool.find(MANY) == blocks
    pool.drop([blocks[lost]])
    assert pool.take(1) == [blocks[lost]]
    assert pool.find(MANY) == blocks[:lost]
    pool.seal([blocks[lost]], [MANY[lost]])
    assert pool.find(MANY) == blocks


def test_what_was_found_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    pool = BlockPool(len(MANY))
    blocks = filled(pool, *MANY)
    before = kept(pool)
    for first in range(LOT):
        assert pool.find(MANY[first : first + LOT]) == blocks[first : first + LOT]
        assert kept(pool) <= before + 2 * (1 + LOT)


def test_blocks_without_content_cannot_be_found() -> None:
    pool = BlockPool(1)
    pool.drop(pool.take(1))
    assert pool.find([K1]) == []


@pytest.mark.parametrize("free_order", BOTH)
def test_holding_a_free_block_rescues_it_from_reuse(free_order: FreeOrder) -> None:
    pool = BlockPool(3, free_order)
    blocks = filled(pool, K1, K2, K3)
    pool.drop(blocks)
    pool.hold([1])
    assert pool.free == 2
    assert order(pool) == [0, 2]
    assert pool.find([K2]) == [1]


def test_free_blocks_are_counted_among_those_that_a_hit_would_use_up() -> None:
    pool = BlockPool(3)
    blocks = filled(pool, K1, K2, K3)
    assert pool.free_among(blocks) == 0
    pool.drop(blocks[1:])
    assert pool.free_among(blocks) == 2
    assert pool.free_among([]) == 0


@pytest.mark.parametrize("free_order", BOTH)
def test_free_blocks_whose_content_can_still_be_found_are_counted(free_order: FreeOrder) -> None:
    pool = BlockPool(5, free_order)
    kept, blank = filled(pool, K1, K2, K2), pool.take(1)
    assert pool.cached == 0
    pool.drop(kept[1:])
    pool.drop(blank)
    assert (pool.cached, pool.free) == (2, 4)
    pool.take(pool.free)
    assert pool.cached == 0


# -- sealing ----------------------------------------------------------------


def test_sealing_tells_which_contents_are_new() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    assert pool.seal(blocks[:2], [K1, K2]) == [K1, K2]
    assert pool.seal(blocks[2:], [K1]) == []


def test_a_block_is_sealed_only_while_it_is_held_and_only_once() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match=r"one of \[0\] has no holder"):
        pool.seal([0], [K1])
    blocks = filled(pool, K1)
    with pytest.raises(AssertionError, match=r"one of \[0\] is sealed twice"):
        pool.seal(blocks, [K2])


def test_a_block_with_content_is_sealed_anew_once_it_was_taken_again() -> None:
    pool = BlockPool(1)
    pool.drop(filled(pool, K1))
    filled(pool, K2)
    assert (pool.find([K1]), pool.find([K2])) == ([], [0])


@pytest.mark.parametrize("free_order", BOTH)
def test_a_seal_can_be_taken_back_from_a_held_block(free_order: FreeOrder) -> None:
    pool = BlockPool(3, free_order)
    blocks = filled(pool, K1)
    pool.unseal(0, K1)
    assert pool.find([K1]) == []
    pool.check({0: 1})
    pool.drop(blocks)
    assert order(pool) == ([0, 1, 2] if free_order == "unsealed_first" else [1, 2, 0])


@pytest.mark.parametrize("free_order", BOTH)
def test_a_seal_can_be_taken_back_from_a_free_block(free_order: FreeOrder) -> None:
    pool = BlockPool(2, free_order)
    pool.drop(filled(pool, K1, K2))
    pool.unseal(1, K2)
    pool.check({})
    assert (pool.find([K1]), pool.find([K2])) == ([0], [])
    assert order(pool) == ([1, 0] if free_order == "unsealed_first" else [0, 1])


def test_taking_a_seal_back_leaves_a_block_alone_that_has_other_content_by_now() -> None:
    pool = BlockPool(1)
    pool.drop(filled(pool, K1))
    filled(pool, K2)
    pool.unseal(0, K1)
    assert pool.find([K2]) == [0]


# -- twins ------------------------------------------------------------------


@pytest.mark.parametrize("way", ["take", "unseal"])
@pytest.mark.parametrize("gone", list(permutations(range(3))), ids=str)
def test_a_content_can_be_found_as_long_as_one_of_its_blocks_is_left(
    gone: tuple[int, ...], way: str
) -> None:
    events: list[CacheEvent] = []
    pool = BlockPool(3, events=events)
    filled(pool, K1, K1, K1)
    pool.drop(gone)  # which is the order in which they will be taken
    left = {0, 1, 2}
    for block in gone:
        assert pool.find([K1])[0] in left
        assert events == []
        if way == "take":
            assert pool.take(1) == [block]
        else:
            pool.unseal(block, K1)
        left.remove(block)
        pool.check({other: 1 for other in {0, 1, 2} - left if way == "take"})
    assert pool.find([K1]) == []
    assert events == [BlockRemoved(K1)]


def test_of_twins_the_first_is_found_and_then_the_next() -> None:
    pool = BlockPool(3)
    filled(pool, K1, K1, K1)
    assert pool.find([K1]) == [0]
    pool.unseal(0, K1)
    assert pool.find([K1]) == [1]


# -- clearing and telling ---------------------------------------------------


@pytest.mark.parametrize("free_order", BOTH)
def test_clearing_forgets_every_content_and_keeps_every_block(free_order: FreeOrder) -> None:
    pool = BlockPool(4, free_order)
    pool.drop(filled(pool, K1, K2, K1))
    pool.clear()
    assert [pool.find([key]) for key in (K1, K2)] == [[], []]
    pool.check({})
    assert sorted(order(pool)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("free_order", "expected"), [("unsealed_first", [1, 0, 2, 3]), ("lru", [3, 1, 0, 2])]
)
def test_after_clearing_the_oldest_block_is_still_reused_first(
    free_order: FreeOrder, expected: list[int]
) -> None:
    pool = BlockPool(4, free_order)
    filled(pool, K1, K2, K3)
    pool.drop([1, 0, 2])
    pool.clear()
    assert order(pool) == expected


def test_clearing_while_a_block_is_held_is_our_fault() -> None:
    pool = BlockPool(2)
    filled(pool, K1)
    with pytest.raises(AssertionError, match="blocks are held"):
        pool.clear()
    assert pool.find([K1]) == [0]


def test_a_removal_is_told_when_the_block_is_taken_and_not_when_it_is_freed() -> None:
    events: list[CacheEvent] = []
    pool = BlockPool(1, events=events)
    pool.drop(filled(pool, K1))
    assert events == []
    pool.drop(pool.take(1))
    assert events == [BlockRemoved(K1)]
    pool.take(1)  # blank by now
    assert events == [BlockRemoved(K1)]


def test_without_a_listener_nothing_is_told() -> None:
    pool = BlockPool(1)
    pool.drop(filled(pool, K1))
    assert pool.take(1) == [0]


# -- the checker ------------------------------------------------------------


def in_every_place() -> BlockPool:
    """0 held, 1 and 2 idle with one content, 3 blank."""
    pool = BlockPool(4)
    blocks = filled(pool, K1, K2, K2)
    pool.drop(blocks[1:])
    return pool


def twice_blank(pool: Any) -> None:
    pool._blank.append(3)


def held_and_idle(pool: Any) -> None:
    pool._idle[0] = None


def held_and_blank(pool: Any) -> None:
    pool._blank.append(0)


def nowhere(pool: Any) -> None:
    pool._blank.remove(3)


def idle_and_blank(pool: Any) -> None:
    pool._content[1] = None
    pool._blank.append(1)


def blank_with_a_key(pool: Any) -> None:
    pool._content[3] = K3
    pool._by_key[K3] = 3


def too_many_holders(pool: Any) -> None:
    pool._holders[0] = 2


def no_holder(pool: Any) -> None:
    pool._holders[0] = 0


def key_that_leads_nowhere(pool: Any) -> None:
    pool._by_key[K3] = 0


def key_that_is_not_listed(pool: Any) -> None:
    del pool._by_key[K1]


def key_that_leads_to_another_block(pool: Any) -> None:
    pool._by_key[K1], pool._by_key[K2] = pool._by_key[K2], pool._by_key[K1]


def twin_that_is_lost(pool: Any) -> None:
    del pool._twins[K2]


def twin_that_is_none(pool: Any) -> None:
    pool._twins[K2].append(0)


def empty_list_of_twins(pool: Any) -> None:
    pool._twins[K1] = []


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (twice_blank, "a block is twice in the list of blank blocks"),
        (held_and_idle, "block 0 is in 2 states"),
        (held_and_blank, "block 0 is in 2 states"),
        (nowhere, "block 3 is in 0 states"),
        (idle_and_blank, "block 1 is in 2 states"),
        (blank_with_a_key, None),
        (too_many_holders, "block 0 has"),
        (no_holder, "block 0 has"),
        (key_that_leads_nowhere, "the keys of the blocks differ"),
        (key_that_is_not_listed, "the keys of the blocks differ"),
        (key_that_leads_to_another_block, "the keys of the blocks differ"),
        (twin_that_is_lost, "the keys of the blocks differ"),
        (twin_that_is_none, "the keys of the blocks differ"),
        (empty_list_of_twins, "a key has an empty list of twins"),
    ],
)
def test_the_checker_notices(corrupt: Any, complaint: str | None) -> None:
    pool = in_every_place()
    pool.check({0: 1})
    corrupt(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check({0: 1})


def test_the_checker_wants_the_holders_that_the_caller_counted() -> None:
    pool = in_every_place()
    for held in ({}, {0: 2}, {0: 1, 1: 1}):
        with pytest.raises(AssertionError, match="holders, not"):
            pool.check(held)


KEYS = [bytes([number]) for number in range(2 * LOT)]


def test_what_was_found_before_a_clear_is_not_found_after_it() -> None:
    pool = BlockPool(LOT)
    blocks = filled(pool, *KEYS[:LOT])
    assert pool.find(KEYS[:LOT]) == blocks
    pool.drop(reversed(blocks))
    pool.clear()
    assert pool.find(KEYS[:LOT]) == []


def test_what_was_found_further_on_is_not_taken_for_the_beginning() -> None:
    pool = BlockPool(2 * LOT)
    blocks = filled(pool, *KEYS)
    assert pool.find(KEYS[LOT:]) == blocks[LOT:]
    assert pool.find(KEYS) == blocks


def test_of_what_was_found_from_further_up_the_end_is_taken() -> None:
    pool = BlockPool(2 * LOT)
    blocks = filled(pool, *KEYS)
    assert pool.find(KEYS) == blocks
    assert pool.find(KEYS[LOT:]) == blocks[LOT:]


def test_only_whole_lots_are_remembered() -> None:
    pool = BlockPool(len(MANY))
    filled(pool, *MANY)
    pool.find(MANY)
    remembered = kept(pool)
    pool.find(MANY[: LOT - 1])
    assert kept(pool) == remembered
