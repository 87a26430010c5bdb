"""Block tables: rows that are placed, grown, shared, forked and cleared."""

import numpy as np
import pytest

from paceline.core.plan import NOTHING_GROWN, Pairs
from paceline.kv.pool import BlockPool
from paceline.kv.tables import BlockTables
from tests.kv.support import LENGTH, SIZE, TEXT, cache, forked, put


def tables(*rows: int, blocks: int = 16) -> tuple[BlockPool, BlockTables]:
    """Tables of four slots; slot i holds `rows[i]` new blocks."""
    pool = BlockPool(blocks)
    made = BlockTables(pool, 4, LENGTH // SIZE, SIZE)
    for slot, count in enumerate(rows):
        made.place(slot, pool.take(count))
    return pool, made


# -- placing and reading ----------------------------------------------------


def test_a_slot_has_the_blocks_that_were_placed_in_it() -> None:
    _, made = tables(3, 0, 2)
    assert [made.blocks(slot) for slot in range(4)] == [[0, 1, 2], [], [3, 4], []]
    assert (made.occupied(), made.count([0, 2])) == ([0, 2], dict.fromkeys(range(5), 1))


@pytest.mark.parametrize(
    ("first", "end", "blocks"), [(0, 2, [0, 1]), (1, 3, [1, 2]), (1, 9, [1, 2]), (3, 4, [])]
)
def test_a_part_of_a_row_ends_where_the_row_ends(first: int, end: int, blocks: list[int]) -> None:
    assert tables(3)[1].blocks(0, first, end) == blocks


def test_the_room_of_a_slot_is_what_its_blocks_hold() -> None:
    _, made = tables(3, 0, 1)
    assert made.room(np.array([2, 0, 1])).tolist() == [4, 12, 0]


def test_a_slot_is_placed_only_when_it_is_empty_and_its_row_is_long_enough() -> None:
    pool, made = tables(1)
    with pytest.raises(AssertionError, match=r"slot 0 already holds \d blocks"):
        made.place(0, pool.take(1))
    with pytest.raises(AssertionError, match="slot 1 has room for 10 blocks, not 11"):
        made.place(1, pool.take(11))


def test_a_cleared_slot_returns_its_blocks_and_leaves_them_held() -> None:
    pool, made = tables(3)
    assert made.clear(0) == [0, 1, 2]
    assert (made.blocks(0), made.occupied(), pool.free) == ([], [], 13)


# -- forking ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "blocks", "copies"), [(9, [0, 1, 3], ((2, 3),)), (8, [0, 1, 3], ()), (0, [3], ())]
)
def test_a_fork_has_a_block_of_its_own_behind_the_full_ones(
    tokens: int, blocks: list[int], copies: Pairs
) -> None:
    pool, made = tables(3)
    assert made.fork(0, 1, tokens) == copies
    assert made.blocks(1) == blocks
    assert [pool.holders(block) for block in blocks] == [2] * (len(blocks) - 1) + [1]


def test_a_slot_that_is_rebased_lets_go_of_its_own_full_blocks() -> None:
    pool, made = tables(3, 3)
    assert made.rebase(1, 0, 9) == ((2, 5),)
    assert (made.blocks(0), made.blocks(1)) == ([0, 1, 2], [0, 1, 5])
    assert [pool.holders(block) for block in range(6)] == [2, 2, 1, 0, 0, 1]


def test_a_slot_that_is_rebased_at_the_edge_of_a_block_copies_nothing() -> None:
    _, made = tables(2, 3)
    assert made.rebase(1, 0, 8) == ()
    assert made.blocks(1) == [0, 1, 4]


# -- growing -------------------------------------------------------------------


def test_what_each_slot_lacks_is_never_negative() -> None:
    kv = cache()
    put(kv, 0, TEXT[:8])
    put(kv, 1, [7])
    slots = np.array([0, 1, 2])
    assert kv.tables.short(slots, np.array([3, 4, 0], np.int32)).tolist() == [0, 0, 0]
    assert kv.tables.short(slots, np.array([9, 13, 1], np.int32)).tolist() == [1, 3, 1]


def test_slots_grow_by_different_numbers_of_blocks() -> None:
    kv = cache()
    put(kv, 0, [1])  # block 0
    put(kv, 2, [2, 2, 2, 2, 2])  # 1 and 2
    put(kv, 3, [3])  # 3
    grown = kv.tables.grow(np.array([2, 0, 3]), np.array([2, 0, 1], np.int32))
    assert grown.slot.tolist() == [2, 2, 3]
    assert grown.index.tolist() == [2, 3, 1]
    assert grown.block.tolist() == [4, 5, 6]
    assert [kv.tables.blocks(slot) for slot in (0, 2, 3)] == [[0], [1, 2, 4, 5], [3, 6]]
    kv.check()


def test_slots_that_need_no_block_get_none_where_the_others_get_one() -> None:
    kv = cache()
    for slot in range(3):
        put(kv, slot, [slot])
    grown = kv.tables.grow(np.array([2, 1, 0]), np.array([1, 0, 1], np.int32))
    assert (grown.slot.tolist(), grown.index.tolist()) == ([2, 0], [1, 1])
    assert [kv.tables.blocks(slot) for slot in range(3)] == [[0, 4], [1], [2, 3]]
    kv.check()


def test_growing_by_nothing_takes_nothing() -> None:
    kv = cache()
    put(kv, 0, [1])
    assert kv.tables.grow(np.array([0]), np.array([0], np.int32)) is NOTHING_GROWN
    assert kv.tables.grow(np.array([], np.intp), np.array([], np.int32)) is NOTHING_GROWN
    assert kv.pool.free == 15


def test_growing_by_one_is_growing_by_a_one_for_each() -> None:
    one, other = cache(), cache()
    for kv in (one, other):
        put(kv, 0, [1])
        put(kv, 2, [2, 2, 2, 2, 2])
    slots = np.array([2, 0])
    a, b = one.tables.grow_by_one(slots), other.tables.grow(slots, np.ones(2, np.int32))
    for name in ("slot", "index", "block"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    assert one.tables.table.tolist() == other.tables.table.tolist()
    assert one.tables.held.tolist() == other.tables.held.tolist()
    one.check()


def test_a_slot_can_grow_to_the_full_model_length() -> None:
    kv = cache()
    made = put(kv, 0, TEXT[:1])
    kv.tables.grow(np.array([0]), kv.tables.short(np.array([0]), np.array([LENGTH], np.int32)))
    assert kv.tables.held[0] == LENGTH // SIZE == kv.tables.table.shape[1]
    kv.release(0, made)
    assert kv.pool.free == 16


# -- sharing -------------------------------------------------------------------


@pytest.mark.parametrize("common", range(6))
def test_leading_blocks_that_others_hold_are_counted(common: int) -> None:
    kv = cache()
    alone = put(kv, 0, TEXT[:22])
    assert kv.tables.shared(0) == 0
    put(kv, 1, [*TEXT[: common * SIZE], 1, 2])
    assert (kv.tables.shared(0), kv.tables.shared(1)) == (common, common)
    kv.release(0, alone)
    assert kv.tables.shared(1) == 0


def test_blocks_that_only_some_slots_hold_are_listed() -> None:
    kv = cache()
    put(kv, 0, TEXT[:10])  # 0, 1, 2
    put(kv, 1, [*TEXT[:4], 1, 2])  # 0, 3
    put(kv, 2, [*TEXT[:8], 1])  # 0, 1, 4
    assert [kv.tables.held_only_by([slot]) for slot in (0, 1, 2, 3)] == [{2}, {3}, {4}, set()]
    assert kv.tables.held_only_by([0, 1]) == {2, 3}
    assert kv.tables.held_only_by([0, 2]) == {1, 2, 4}
    assert kv.tables.held_only_by([0, 1, 2]) == {0, 1, 2, 3, 4}
    assert kv.tables.held_only_by([]) == set()


def test_an_empty_slot_shares_nothing() -> None:
    assert cache().tables.shared(0) == 0


def test_what_two_hold_alone_is_free_only_when_both_are_gone() -> None:
    kv = cache()
    forked(kv, 9)
    assert kv.tables.held_only_by([0]) == {2}
    assert kv.tables.held_only_by([1]) == {3}
    assert kv.tables.held_only_by([0, 1]) == {0, 1, 2, 3}


# -- many steps at once -----------------------------------------------------
