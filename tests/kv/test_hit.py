"""Hits with a host part: what a lookup finds there, what it costs, and how it is loaded."""

from collections.abc import Sequence

from paceline.kv.cache import KVCache
from paceline.kv.hit import MISS, MOST_QUESTIONS, Hit, Offers
from paceline.kv.tier import HostTier
from tests.kv.support import (
    TEXT,
    away,
    cache,
    check,
    give_way,
    overwrite,
    put,
    resident,
    sequence,
    tier,
)


def on_the_host(tokens: int = 10, blocks: int = 16, held: bool = False) -> tuple[KVCache, HostTier]:
    """A cache whose host has all full blocks of some text, and whose device has nothing."""
    kv, host = tier(blocks=blocks)
    made = resident(kv, 0, TEXT[:tokens])
    away(kv, host, made)
    if not held:
        host.discard(made)
    overwrite(kv)
    return kv, host


# -- finding ----------------------------------------------------------------


def test_what_is_on_the_host_is_found_whether_held_or_not() -> None:
    for held in (False, True):
        kv, _ = on_the_host(held=held)
        assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((), 8, (0, 1))
        assert kv.lookup_device(sequence(kv, TEXT[:20])) == MISS


def test_the_host_part_continues_the_device_part() -> None:
    kv, _ = on_the_host(tokens=14)
    put(kv, 1, TEXT[:5])  # computes the first block
    first = kv.tables.blocks(1)[0]
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit((first,), 12, (1, 2))


def test_a_sequence_needs_no_keys_of_its_own_to_find_its_host_part() -> None:
    kv, _ = on_the_host(tokens=14)
    wanted = sequence(kv, TEXT[:20])
    wanted.keys.clear()
    assert kv.lookup(wanted).host == (0, 1, 2)


def test_the_last_known_token_does_not_come_from_the_host() -> None:
    kv, _ = on_the_host()
    assert kv.lookup(sequence(kv, TEXT[:8])) == Hit((), 4, (0,))
    assert kv.lookup(sequence(kv, TEXT[:4])) == MISS


def test_other_content_finds_nothing_on_the_host() -> None:
    kv, _ = on_the_host()
    assert kv.lookup(sequence(kv, TEXT[1:20])) == MISS
    assert kv.lookup(sequence(kv, TEXT[:20], cache_salt="other")) == MISS


def test_a_copy_to_the_host_that_is_not_confirmed_is_not_found() -> None:
    """The first block has been there for longer, so the device may reuse it at once."""
    kv, host = tier()
    away(kv, host, resident(kv, 0, TEXT[:5]))
    overwrite(kv)
    made = resident(kv, 0, TEXT[:14])
    assert host.store([made], [13], step=2) is not None
    give_way(kv, made)
    overwrite(kv)
    wanted = sequence(kv, TEXT[:20])
    assert kv.lookup(wanted) == Hit((), 4, (0,))
    kv.confirm(2)
    overwrite(kv)
    assert kv.lookup(wanted) == Hit((), 12, (0, 1, 2))
    check(kv, host)


def test_without_prefix_caching_the_host_is_not_searched() -> None:
    kv, host = tier(enable_prefix_caching=False)
    made = resident(kv, 0, TEXT[:10])
    away(kv, host, made)
    assert kv.lookup(sequence(kv, TEXT[:20])) == MISS


def test_without_a_host_all_of_a_hit_is_on_the_device() -> None:
    kv = cache()
    put(kv, 0, TEXT[:10])
    wanted = sequence(kv, TEXT[:20])
    assert kv.lookup(wanted) == kv.lookup_device(wanted) == Hit((0, 1), 8)


# -- loading ----------------------------------------------------------------


def test_a_host_part_takes_device_blocks() -> None:
    kv, _ = on_the_host()
    hit = kv.lookup(sequence(kv, TEXT[:20]))
    assert kv.tables.missing(hit, 20) == 5
    assert kv.tables.missing(hit, 9) == 3


def test_a_load_lists_each_host_block_with_its_device_block() -> None:
    kv, host = on_the_host(tokens=14)
    put(kv, 1, TEXT[:5])
    made = sequence(kv, TEXT[:20])
    hit = kv.lookup(made)
    (blocks,) = kv.attach(0, made, hit, 20)
    assert kv.load(0, made, hit, step=7) == ((1, blocks[1]), (2, blocks[2]))
    check(kv, host)


def test_both_ends_are_fenced_until_the_step_has_run() -> None:
    kv, host = on_the_host()
    made = sequence(kv, TEXT[:20])
    hit = kv.lookup(made)
    kv.attach(0, made, hit, 20)
    kv.load(0, made, hit, step=7)
    assert (kv.host.free, kv.pool.free) == (6, 11)
    kv.release(0, made)
    assert (kv.host.free, kv.pool.free) == (6, 14)
    check(kv, host)
    kv.confirm(7)
    assert (kv.host.free, kv.pool.free) == (8, 16)
    check(kv, host)


def test_what_is_loaded_for_one_is_found_by_the_next_on_the_device() -> None:
    kv, host = on_the_host()
    made = sequence(kv, TEXT[:20])
    hit = kv.lookup(made)
    (blocks,) = kv.attach(0, made, hit, 20)
    kv.load(0, made, hit, step=7)
    assert kv.lookup(sequence(kv, TEXT[:20])) == Hit(blocks[:2], 8)
    check(kv, host)


def test_a_load_that_failed_leaves_nothing_on_the_device_and_all_on_the_host() -> None:
    kv, host = on_the_host()
    made = sequence(kv, TEXT[:20])
    hit = kv.lookup(made)
    kv.attach(0, made, hit, 20)
    kv.load(0, made, hit, step=7)
    kv.index.retract()
    assert kv.fences.retract() == []
    kv.release(0, made)
    check(kv, host)
    assert kv.lookup(sequence(kv, TEXT[:20])) == hit
    assert (kv.host.free, kv.pool.free) == (8, 16)


def test_a_connector_is_asked_a_few_times_and_then_only_the_device() -> None:
    asked: list[list[bytes]] = []

    def offer(keys: Sequence[bytes], have: int) -> int:
        asked.append(list(keys))
        return 0

    offers = Offers(offer, {b"here"}.__contains__)
    for _ in range(3 * MOST_QUESTIONS):
        assert offers.first_absent([b"here", b"there"]) == 1
    assert asked == [[b"there"]] * MOST_QUESTIONS
    assert offers.first_absent([b"here"]) is None
    assert not offers.must_ask_later
