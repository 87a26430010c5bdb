"""Block tables of several attention groups, computed by hand."""

import numpy as np
import pytest

from paceline.core.plan import NO_BLOCK
from paceline.core.settings.features import AttentionGroup
from paceline.kv.groups import GroupTables
from paceline.kv.hit import MISS, Hit
from paceline.kv.pool import BlockPool

SIZE, SLOTS, ENTRIES, ROW = 4, 3, 16, 8
FULL, WINDOW = AttentionGroup(), AttentionGroup("sliding_window", 6)


def made(*kinds: AttentionGroup, blocks: int = 64) -> tuple[GroupTables, BlockPool]:
    pool = BlockPool(blocks)
    return GroupTables(pool, SLOTS, ENTRIES, SIZE, kinds or (FULL, WINDOW), ROW), pool


def row(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.intp)


def test_a_group_that_slides_takes_the_blocks_of_one_step() -> None:
    tables, pool = made()
    assert tables.missing(MISS, 40) == 10 + 2
    assert tables.attach(0, MISS, 40) == (tuple(range(10)), (10, 11))
    assert pool.free == 64 - 12
    assert tables.room(slots(0)).tolist() == [8]
    assert tables.entries(0) == (tuple(range(10)), (10, 11))
    pool.check(tables.count([0]))


def test_a_hit_is_mapped_with_the_entries_that_have_no_block() -> None:
    tables, pool = made()
    pool.take(8)
    hit = Hit((0, 1, 2, 5, 6), 12, groups=((0, 1, 2), (NO_BLOCK, 5, 6)))
    assert tables.missing(hit, 16) == 2
    found = tables.attach(1, hit, 16)
    assert found == ((0, 1, 2, 8), (NO_BLOCK, 5, 6, 9)) == tables.entries(1)
    assert tables.passed[:, 1].tolist() == [0, 1]
    assert sorted(tables.clear(1)) == [0, 1, 2, 5, 6, 8, 9]
    assert tables.occupied() == []


def test_rows_are_short_of_blocks_in_each_group() -> None:
    tables, _ = made(blocks=16)
    tables.attach(0, MISS, 12)  # the window has the 8 positions of one row
    tables.attach(1, MISS, 4)
    short = tables.short(slots(0, 1), row(14, 9))
    assert short.tolist() == [[1, 2], [2, 2]]
    assert tables.unaffordable(short).tolist() == [False, False]
    short = tables.short(slots(0, 1), row(24, 12))
    assert short.tolist() == [[3, 2], [4, 2]]
    assert tables.unaffordable(short).tolist() == [False, True]  # 9 are free


def test_groups_grow_by_as_much_as_each_lacks() -> None:
    tables, pool = made()
    tables.attach(0, MISS, 12)
    tables.attach(1, MISS, 4)
    grown = tables.grow(slots(0, 1), tables.short(slots(0, 1), row(14, 4)))
    assert (grown.slot.tolist(), grown.index.tolist(), grown.block.tolist()) == ([0], [3], [7])
    (more,) = grown.more
    assert (more.slot.tolist(), more.index.tolist(), more.block.tolist()) == (
        [0, 0],
        [2, 3],
        [8, 9],
    )
    assert tables.room(slots(0, 1)).tolist() == [16, 4]
    pool.check(tables.count([0, 1]))
    assert not len(tables.grow(slots(0), tables.short(slots(0), row(16))).block)


def test_a_steady_step_grows_the_groups_that_are_full() -> None:
    tables, pool = made(blocks=10)
    for slot in (0, 1):
        tables.attach(slot, MISS, 8)
    assert pool.free == 2
    assert tables.grow_at(slots(0, 1), row(8, 8)) is None
    grown = tables.grow_at(slots(0, 1), row(8, 5))
    assert grown is not None
    assert (grown.slot.tolist(), grown.more[0].slot.tolist()) == ([0], [0])


@pytest.mark.parametrize(("computed", "left"), [(8, 0), (9, 1), (12, 1), (13, 2), (17, 3)])
def test_blocks_that_fall_out_of_the_window_go_back(computed: int, left: int) -> None:
    tables, pool = made()
    tables.attach(0, MISS, 8)
    tables.grow(slots(0), tables.short(slots(0), row(20)))
    free, window = pool.free, tables.entries(0)[1]
    assert tables.passing(slots(0), row(computed)).tolist() == [[0], [left]]
    assert tables.coming(slots(0), row(computed)) == left
    tables.slide(slots(0), row(computed))
    assert pool.free == free + left
    assert tables.entries(0)[1] == (NO_BLOCK,) * left + window[left:]
    pool.check(tables.count([0]))
    tables.slide(slots(0), row(computed))
    assert pool.free == free + left


def test_a_block_that_several_hold_comes_free_with_the_last_of_them() -> None:
    tables, pool = made()
    tables.attach(0, MISS, 12)
    tables.grow(slots(0), tables.short(slots(0), row(12)))
    assert tables.fork(0, 1, 8) == ()
    assert tables.entries(1) == ((0, 1, 6), (3, 4, 7))
    assert tables.coming(slots(0), row(12)) == 0
    assert tables.coming(slots(0, 1), row(12, 10)) == 1
    tables.slide(slots(0), row(12))
    assert (pool.holders(3), tables.held_only_by([1])) == (1, {3, 6, 7})


def test_a_fork_shares_what_its_parent_still_has() -> None:
    tables, pool = made()
    tables.attach(0, MISS, 12)
    tables.grow(slots(0), tables.short(slots(0), row(12)))
    tables.slide(slots(0), row(9))
    assert tables.fork(0, 1, 11) == ((2, 3), (5, 6))  # block 3 came free
    assert tables.entries(1) == ((0, 1, 3), (NO_BLOCK, 4, 6))
    pool.check(tables.count([0, 1]))
    tables.slide(slots(1), row(13))
    assert tables.rebase(1, 0, 8) == ()
    assert tables.entries(1) == ((0, 1, 3), (NO_BLOCK, 4, 6))
    pool.check(tables.count([0, 1]))


def test_a_fork_does_not_hold_what_only_steps_in_flight_read() -> None:
    tables, pool = made()
    tables.attach(0, MISS, 12)
    tables.grow(slots(0), tables.short(slots(0), row(12)))
    assert tables.fork(0, 1, 11) == ((2, 6), (5, 7))
    assert tables.entries(1) == ((0, 1, 6), (NO_BLOCK, 4, 7))  # position 11 reads 6 to 11
    assert tables.coming(slots(1), row(11)) == 0
    tables.slide(slots(0), row(11))
    assert pool.holders(3) == 0
    pool.check(tables.count([0, 1]))


def test_a_group_that_slides_never_needs_more_than_its_window_and_a_row() -> None:
    tables, _ = made(FULL, WINDOW, AttentionGroup("chunked_local", 8, count=2))
    assert tables.most_blocks(8) == 4 * 2
    # 5 positions before the row, and its 8, may lie in 4 blocks; 7 and 8 in 5 blocks.
    assert tables.most_blocks(60) == 15 + 4 + 2 * 5
    assert tables.most_blocks(60, width=2, shared=20) == (15 + 10) + 2 * 4 + 2 * 10
    assert tables.forked_blocks(20, 60) == 10 + 3 * 2


def test_a_sequence_returns_with_the_blocks_that_it_reads() -> None:
    tables, pool = made()
    tables.attach(0, MISS, 8)
    tables.grow(slots(0), tables.short(slots(0), row(14)))
    tables.slide(slots(0), row(13))
    assert not tables.can_resume(0, 12)
    assert tables.can_resume(0, 13)
    full, window = tables.entries(0)
    read = tables.read(0, 13)
    assert read == [full[0], full[1], full[2], window[2], full[3], window[3]]
    assert [tables.index_of(count, 13) for count in range(7)] == [0, 1, 2, 2, 3, 3, 4]
    assert [tables.whole(count, 13) for count in range(7)] == [0, 1, 2, 2, 4, 4, 6]
    assert tables.growth(13, 17) == 2
    tables.place_read(1, [*range(40, 48)], 13, 17)
    assert tables.entries(1) == ((40, 41, 42, 44, 46), (NO_BLOCK, NO_BLOCK, 43, 45, 47))
    assert pool.holders(40) == 0


def test_sequences_begin_alike_if_their_windows_begin_in_the_same_blocks() -> None:
    """Otherwise one reads a block in the middle of what they share, and the other does not."""
    tables, _ = made()
    assert tables.begin_alike([9, 12])  # these read from block 1 on
    assert not tables.begin_alike([9, 13])
    assert made(FULL, FULL)[0].begin_alike([9, 13])


def test_slots_that_hold_nothing_pass_nothing() -> None:
    tables, pool = made()
    tables.slide(slots(0, 1), row(40, 40))
    assert (pool.free, tables.passed.any()) == (64, False)


def test_blocks_of_one_index_stand_together() -> None:
    tables, _ = made()
    tables.attach(0, MISS, 16)
    assert tables.blocks(0) == [0, 4, 1, 5]  # where both groups have blocks
    assert tables.blocks(0, 1, 2) == [1, 5]
    assert tables.shared(0) == 0


def test_slots_are_alike_where_both_hold_the_same_blocks() -> None:
    tables, _ = made()
    tables.place_groups(0, [(1, 2, 3, 4), (NO_BLOCK, 6, 7, 8)])
    tables.place_groups(1, [(1, 2, 3, 9), (NO_BLOCK, NO_BLOCK, 7, 8)])
    tables.place_groups(2, [(1, 2, 3, 4), (NO_BLOCK, 6, 10, 11)])
    assert tables.alike(0, 1) == tables.alike(1, 0) == 3
    assert tables.alike(0, 2) == 2
    assert tables.alike(1, 2) == 0  # what both read in the window differs
