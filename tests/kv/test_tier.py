"""Host blocks of sequences that gave way: what is stored, shared, brought back and forgotten."""

import pytest

from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.tier import Stored
from tests.kv.support import (
    TEXT,
    away,
    check,
    extend,
    give_way,
    overwrite,
    resident,
    sequence,
    tier,
)


def family(kv: KVCache, tokens: int = 10) -> list[Sequence]:
    """Two sequences in slots 0 and 1 that share all full blocks but the last one."""
    parent, child = resident(kv, 0, TEXT[:tokens]), sequence(kv, TEXT[:tokens])
    kv.fork(0, 1, child, tokens - 1)
    child.slot = 1
    return [parent, child]


# -- to the host ------------------------------------------------------------


def test_the_blocks_that_hold_something_are_copied() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    assert host.moves([made], [9]) == 3
    assert host.store([made], [9], step=1) == ((0, 0), (1, 1), (2, 2))
    assert host.stored(made) == Stored((0, 1, 2), 9)
    assert kv.host.free == 5
    check(kv, host)


@pytest.mark.parametrize(("tokens", "blocks"), [(8, 2), (7, 2), (4, 1), (1, 1), (0, 0)])
def test_as_many_blocks_as_the_tokens_take_and_no_more(tokens: int, blocks: int) -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    assert host.moves([made], [tokens]) == blocks
    assert host.store([made], [tokens], step=1) == tuple((block, block) for block in range(blocks))
    check(kv, host)


def test_asking_how_much_would_move_changes_nothing() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    host.moves([made], [9])
    assert (kv.host.free, host.ready(made)) == (8, True)
    check(kv, host)


def test_blocks_are_fenced_until_the_step_that_copies_them_has_run() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    host.store([made], [9], step=7)
    assert kv.fences.coming == 0  # the sequence holds them still
    give_way(kv, made)
    assert (kv.pool.free, kv.fences.coming) == (16 - 3, 3)
    assert not host.ready(made)
    check(kv, host)
    assert not kv.fences.confirm(6)
    assert (kv.pool.free, host.ready(made)) == (16 - 3, False)
    assert kv.fences.confirm(7)
    assert (kv.pool.free, kv.fences.coming, host.ready(made)) == (16, 0, True)
    assert not kv.fences.confirm(7)
    check(kv, host)


def test_a_later_step_lifts_the_fences_of_earlier_ones_too() -> None:
    kv, host = tier()
    first, second = resident(kv, 0, TEXT[:6]), resident(kv, 1, TEXT[10:16])
    host.store([first], [5], step=3)
    host.store([second], [5], step=4)
    give_way(kv, first, second)
    assert kv.fences.confirm(5)
    assert kv.pool.free == 16
    check(kv, host)


def test_content_stays_findable_on_the_device_while_it_is_fenced_and_after() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    host.store([made], [9], step=1)
    give_way(kv, made)
    assert kv.lookup(sequence(kv, TEXT[:10])).tokens == 8
    kv.fences.confirm(1)
    assert kv.lookup(sequence(kv, TEXT[:10])).tokens == 8


# -- room -------------------------------------------------------------------


def test_without_room_nothing_is_stored_and_nothing_changes() -> None:
    kv, host = tier(host=2)
    made = resident(kv, 0, TEXT[:10])
    assert host.store([made], [9], step=1) is None
    assert (kv.host.free, host.ready(made)) == (2, True)
    assert not kv.fences.confirm(1)
    give_way(kv, made)
    assert kv.pool.free == 16
    check(kv, host)


def test_just_enough_room_is_enough() -> None:
    kv, host = tier(host=3)
    made = resident(kv, 0, TEXT[:10])
    assert host.store([made], [9], step=1) is not None
    assert kv.host.free == 0


def test_a_family_fits_as_a_whole_or_not_at_all() -> None:
    for room, fits in ((4, True), (3, False)):
        kv, host = tier(host=room)
        members = family(kv)
        assert (host.store(members, [9, 9], step=1) is not None) == fits
        assert kv.host.free == (0 if fits else 3)
        check(kv, host)


def test_content_that_nobody_keeps_takes_room_when_it_is_kept_again() -> None:
    """Two blocks of the host have what is wanted, but are free; two new ones do not fit beside."""
    kv, host = tier(host=3)
    first = resident(kv, 0, TEXT[:9])
    away(kv, host, first)
    host.discard(first)
    longer = resident(kv, 0, TEXT[:16])
    assert (kv.host.free, host.moves([longer], [16])) == (3, 2)
    assert host.store([longer], [16], step=2) is None
    assert host.store([longer], [12], step=2) is not None
    check(kv, host)


def test_the_content_of_those_who_left_gives_way_to_new_content() -> None:
    kv, host = tier(host=3)
    first, second = resident(kv, 0, TEXT[:10]), resident(kv, 1, [7] * 10)
    away(kv, host, first)
    host.discard(first)
    assert kv.host.free == 3
    assert len(host.store([second], [9], step=2) or ()) == 3
    check(kv, host)


def test_a_tier_without_blocks_keeps_nothing_but_nothing() -> None:
    kv, host = tier(host=0)
    made = resident(kv, 0, TEXT[:10])
    assert host.store([made], [9], step=1) is None
    assert host.store([made], [0], step=1) == ()


# -- sharing ----------------------------------------------------------------


def test_full_blocks_of_equal_content_are_kept_once() -> None:
    kv, host = tier()
    first, second = resident(kv, 0, TEXT[:10]), resident(kv, 1, [*TEXT[:8], 1, 2, 3])
    host.store([first], [9], step=1)
    assert host.moves([second], [10]) == 1
    assert host.store([second], [10], step=2) == ((3, 3),)
    assert host.stored(second).blocks == (0, 1, 3)
    check(kv, host)


def test_content_whose_copy_is_still_to_be_done_is_shared_already() -> None:
    """The step that brings it runs before, and if it fails so does the later one."""
    kv, host = tier()
    first, second = resident(kv, 0, TEXT[:9]), resident(kv, 1, TEXT[:9])
    host.store([first], [8], step=1)
    assert host.store([second], [8], step=1) == ()
    give_way(kv, first, second)
    assert kv.fences.retract() == [second.serial, first.serial]
    check(kv, host)


def test_what_is_shared_stays_until_the_last_one_goes() -> None:
    kv, host = tier()
    first, second = resident(kv, 0, TEXT[:9]), resident(kv, 1, TEXT[:9])
    away(kv, host, first, second)
    assert kv.host.free == 6
    host.discard(first)
    assert (kv.host.free, host.stored(second).blocks) == (6, (0, 1))
    host.discard(second)
    assert kv.host.free == 8
    check(kv, host)


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_that_a_family_shares_are_kept_once(caching: bool) -> None:
    kv, host = tier(enable_prefix_caching=caching)
    members = family(kv)
    assert host.moves(members, [9, 9]) == 4
    assert host.store(members, [9, 9], step=1) == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert [host.stored(one).blocks for one in members] == [(0, 1, 2), (0, 1, 3)]
    check(kv, host)


def test_without_keys_only_blocks_themselves_are_alike() -> None:
    kv, host = tier(enable_prefix_caching=False)
    first, second = resident(kv, 0, TEXT[:9]), resident(kv, 1, TEXT[:9])
    assert host.moves([first, second], [8, 8]) == 4


def test_a_partial_block_is_never_shared() -> None:
    kv, host = tier()
    first, second = resident(kv, 0, TEXT[:10]), resident(kv, 1, TEXT[:10])
    assert host.moves([first, second], [9, 9]) == 4


# -- back to the device -----------------------------------------------------


def test_what_is_gone_from_the_device_is_copied_back() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    overwrite(kv)
    assert host.need([made], [10]) == 3
    moves = host.restore([made], [2], [10], step=5)
    blocks = kv.tables.blocks(2)
    assert moves == tuple(zip((0, 1, 2), blocks, strict=True))
    assert kv.lookup(sequence(kv, TEXT[:10])).device == tuple(blocks[:2])
    check(kv, host)


def test_host_blocks_are_fenced_until_they_are_read() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    host.restore([made], [0], [10], step=5)
    assert kv.host.free == 5
    assert kv.fences.arriving == {made.serial}
    kv.fences.confirm(5)
    assert (kv.host.free, kv.fences.arriving) == (8, set())
    check(kv, host)


def test_what_is_still_on_the_device_is_not_copied() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    ((source, target),) = host.restore([made], [1], [10], step=5)
    assert (source, kv.tables.blocks(1)) == (2, [0, 1, target])
    check(kv, host)


def test_only_what_was_stored_counts_as_still_on_the_device() -> None:
    """Another has computed more of the same text; the sequence returns to where it was."""
    kv, host = tier()
    made = resident(kv, 0, TEXT[:13])
    assert host.store([made], [6], step=1) is not None
    give_way(kv, made)
    kv.fences.confirm(1)
    moves = host.restore([made], [0], [13], step=2)
    assert (len(moves), moves[0][0]) == (1, 1)
    assert (kv.tables.blocks(0)[0], kv.index.sealed[0], len(kv.tables.blocks(0))) == (0, 1, 4)
    check(kv, host)


def test_nothing_at_all_may_be_left_to_copy() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:9])
    away(kv, host, made)
    assert host.restore([made], [0], [9], step=2) == ()
    kv.fences.confirm(2)
    assert kv.host.free == 8
    check(kv, host)


def test_without_a_prefix_cache_everything_is_copied_back() -> None:
    kv, host = tier(enable_prefix_caching=False)
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    assert len(host.restore([made], [0], [10], step=2)) == 3
    assert kv.index.sealed[0] == 0
    check(kv, host)


def test_room_for_what_comes_next_is_taken_at_once() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:9])
    away(kv, host, made)
    overwrite(kv)
    assert host.need([made], [17]) == 5
    moves = host.restore([made], [0], [17], step=2)
    assert (len(moves), len(kv.tables.blocks(0))) == (2, 5)
    check(kv, host)


def test_less_room_than_was_stored_is_no_less() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    overwrite(kv)
    assert host.need([made], [5]) == 3
    assert len(host.restore([made], [0], [5], step=2)) == 3


@pytest.mark.parametrize("caching", [True, False])
def test_a_family_shares_again_what_it_shared(caching: bool) -> None:
    kv, host = tier(enable_prefix_caching=caching)
    members = family(kv)
    away(kv, host, *members)
    overwrite(kv)
    assert host.need(members, [10, 10]) == 4
    assert len(host.restore(members, [2, 3], [10, 10], step=2)) == 4
    one, other = kv.tables.blocks(2), kv.tables.blocks(3)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert kv.pool.free == 16 - 4
    check(kv, host)
    kv.fences.confirm(2)
    assert kv.host.free == 8


def test_what_comes_back_is_pending_until_its_step_has_run() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    overwrite(kv)
    host.restore([made], [0], [10], step=2)
    assert len(kv.lookup(sequence(kv, TEXT[:10])).device) == 2
    kv.index.retract()
    assert not kv.lookup(sequence(kv, TEXT[:10])).device


def test_a_sequence_can_go_and_come_again() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    for step in range(1, 9, 2):
        away(kv, host, made, step=step)
        overwrite(kv)
        assert len(host.restore([made], [0], [10], step + 1)) == 3
        kv.fences.confirm(step + 1)
        made.slot = 0
        check(kv, host)
    assert kv.host.free == 8


def test_what_grew_since_is_copied_and_the_rest_is_found_on_the_host() -> None:
    kv, host = tier()
    made, other = resident(kv, 0, TEXT[:9]), resident(kv, 1, TEXT[:9])
    away(kv, host, other)
    extend(kv, 0, made, TEXT[9:14])
    assert host.store([made], [13], step=2) is not None
    assert host.stored(made).blocks[:2] == host.stored(other).blocks
    check(kv, host)


# -- forgetting -------------------------------------------------------------


def test_discarding_what_was_never_stored_is_nothing() -> None:
    kv, host = tier()
    host.discard(resident(kv, 0, TEXT[:9]))
    check(kv, host)


def test_host_blocks_of_one_that_ended_wait_for_the_copy_into_them() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    host.store([made], [9], step=1)
    give_way(kv, made)
    host.discard(made)
    assert kv.host.free == 5
    check(kv, host)
    kv.fences.confirm(1)
    assert (kv.host.free, kv.pool.free) == (8, 16)
    check(kv, host)


@pytest.mark.parametrize("ends_before", [True, False])
def test_of_what_nobody_keeps_any_more_the_deepest_host_block_is_reused_first(
    ends_before: bool,
) -> None:
    kv, host = tier(host=3)
    made = resident(kv, 0, TEXT[:12])
    host.store([made], [12], step=1)
    give_way(kv, made)
    for end in (host.discard, lambda _: kv.fences.confirm(1))[:: 1 if ends_before else -1]:
        end(made)
    assert kv.host.take(3) == [2, 1, 0]


def test_a_reset_waits_for_copies_that_no_sequence_needs_any_more() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:8])
    host.store([made], [8], step=1)
    give_way(kv, made)
    host.discard(made)
    assert not kv.reset()
    kv.fences.confirm(1)
    assert kv.reset()
    check(kv, host)


def test_a_reset_waits_until_nothing_is_stored() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:9])
    away(kv, host, made)
    assert not kv.reset()
    host.discard(made)
    assert kv.host.cached == 2  # its content is there still
    assert kv.reset()
    assert host.moves([resident(kv, 0, TEXT[:9])], [8]) == 2
    check(kv, host)


# -- steps that fail --------------------------------------------------------


def test_a_failed_copy_leaves_nothing_on_the_host() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    host.store([made], [9], step=1)
    give_way(kv, made)
    assert kv.fences.retract() == [made.serial]
    assert kv.pool.free == 16
    host.discard(made)
    assert kv.host.free == 8
    again = resident(kv, 0, TEXT[:10])
    assert host.moves([again], [8]) == 2  # what was never written is not found
    check(kv, host)


def test_a_failure_keeps_what_had_arrived_before() -> None:
    kv, host = tier()
    first, second = resident(kv, 0, TEXT[:9]), resident(kv, 1, TEXT[:13])
    away(kv, host, first)
    host.store([second], [12], step=2)
    give_way(kv, second)
    assert kv.fences.retract() == [second.serial]
    host.discard(second)
    again = resident(kv, 0, TEXT[:13])
    assert host.moves([again], [12]) == 1
    check(kv, host)


def test_a_failed_copy_of_one_that_ended_leaves_nothing_on_the_host() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    host.store([made], [9], step=1)
    give_way(kv, made)
    host.discard(made)
    kv.fences.retract()
    assert (kv.host.free, kv.host.cached) == (8, 0)
    check(kv, host)


def test_a_return_that_failed_lifts_its_fences() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    overwrite(kv)
    host.restore([made], [0], [10], step=2)
    assert kv.fences.retract() == []
    assert (kv.host.free, kv.fences.arriving) == (8, set())
    check(kv, host)


# -- the checker ------------------------------------------------------------


def test_the_checker_counts_the_holders_of_host_blocks() -> None:
    kv, host = tier()
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    kv.host.hold([1])
    with pytest.raises(AssertionError, match="block 1 has"):
        check(kv, host)
