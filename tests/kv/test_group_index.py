"""Prefixes of several attention groups: one length that suits all of them."""

from collections.abc import Sequence as Keys

import numpy as np
import pytest

from paceline.core.events import BlockRemoved, BlockStored
from paceline.core.plan import NO_BLOCK
from paceline.core.request import Sequence
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import AttentionGroup
from paceline.kv.cache import KVCache
from paceline.kv.hit import MISS, Offer
from tests.kv.support import SIZE, SLOTS, TEXT, admit, cache, extend, put, sequence

FULL = AttentionGroup()


def window(tokens: int, count: int = 1) -> AttentionGroup:
    return AttentionGroup("sliding_window", tokens, count)


def chunk(tokens: int) -> AttentionGroup:
    return AttentionGroup("chunked_local", tokens)


def left_behind(kv: KVCache, tokens: int) -> Sequence:
    made = put(kv, SLOTS - 1, TEXT[:tokens])
    kv.release(SLOTS - 1, made, tokens)
    kv.check()
    return made


def forget(kv: KVCache, made: Sequence, group: int, *indices: int) -> None:
    """Evict the blocks of some indices in one group."""
    for index in indices:
        name = kv.index.names(made.keys[index])[group]
        (block,) = kv.pool.find([name])
        assert kv.pool.unseal(block, name)


@pytest.mark.parametrize(
    ("kind", "missing", "tokens"),
    [
        (window(6), [0, 1], 20),  # positions 15 to 19: blocks 3 and 4
        (window(6), [4], 16),
        (window(6), [3], 12),
        (window(6), [1, 3], 4),  # a run from block 0 on may be shorter
        (window(6), [0, 2, 4], 0),
        (window(5), [3], 20),  # 4 positions before the next one
        (window(1), [0, 1, 2, 3, 4], 20),
        (chunk(8), [0, 1, 2, 3], 20),  # the chunk of position 20 begins at 16
        (chunk(8), [4], 16),  # which begins a chunk
        (chunk(8), [2, 4], 16),
        (chunk(6), [4], 16),  # positions 12 to 15 are of its chunk
        (chunk(6), [3, 4], 12),
        (FULL, [3], 12),
    ],
)
def test_a_group_has_a_prefix_if_it_has_what_is_read_behind_it(
    kind: AttentionGroup, missing: list[int], tokens: int
) -> None:
    kv = cache(attention_groups=[FULL, kind])
    made = left_behind(kv, 20)
    forget(kv, made, 1, *missing)
    hit = kv.lookup(sequence(kv, TEXT[:22]))
    assert hit.tokens == tokens
    if tokens:
        unread = kind.unread(tokens) // SIZE
        assert hit.groups[1][:unread] == (NO_BLOCK,) * unread
        assert NO_BLOCK not in (*hit.groups[0], *hit.groups[1][unread:])
        assert sorted(hit.device) == sorted(b for one in hit.groups for b in one if b != NO_BLOCK)


def test_all_groups_agree_on_one_length() -> None:
    kv = cache(blocks=64, attention_groups=[FULL, window(6), chunk(8)])
    made = left_behind(kv, 28)
    wanted = sequence(kv, TEXT[:30])
    assert kv.lookup(wanted).tokens == 28
    forget(kv, made, 0, 6)  # full attention: 24 at most
    assert kv.lookup(wanted).tokens == 24
    forget(kv, made, 1, 5)  # then the window: 20
    assert kv.lookup(wanted).tokens == 20
    forget(kv, made, 2, 4)  # then the chunk: 16, for which the window has blocks 2 and 3
    assert kv.lookup(wanted).tokens == 16
    forget(kv, made, 1, 2)  # 8, where the chunk begins
    assert kv.lookup(wanted).tokens == 8


def test_at_least_one_token_is_left_to_compute() -> None:
    kv = cache(attention_groups=[FULL, window(6)])
    left_behind(kv, 16)
    assert kv.lookup(sequence(kv, TEXT[:16])).tokens == 12
    assert kv.lookup(sequence(kv, TEXT[:17])).tokens == 16
    assert kv.lookup(sequence(kv, TEXT[:17]), most=11).tokens == 8
    assert kv.lookup(sequence(kv, TEXT[:3])) is MISS


def test_what_reads_nothing_before_a_position_needs_nothing_before_it() -> None:
    kv = cache(attention_groups=[chunk(8)])
    assert kv.lookup(sequence(kv, TEXT[:20])).groups == ((NO_BLOCK,) * 4,)


def test_groups_never_find_the_blocks_of_each_other() -> None:
    kv = cache(attention_groups=[FULL, window(6, count=2)])
    made = left_behind(kv, 8)
    names = [name for key in made.keys for name in kv.index.names(key)]
    found = [kv.pool.find([name])[0] for name in names]
    assert len(set(names)) == len(set(found)) == 6


def test_a_block_that_fell_out_of_the_window_is_still_found() -> None:
    kv = cache(attention_groups=[FULL, window(6)])
    made = put(kv, 0, TEXT[:12])
    free = kv.pool.free
    kv.tables.slide(np.array([0]), np.array([12], np.int32))
    assert kv.pool.free == free + 1
    kv.check()
    hit = admit(kv, 1, sequence(kv, TEXT[:6]))
    assert hit.tokens == 4
    assert kv.pool.free == free - 2  # what it needs beyond that block, which is held again
    extend(kv, 0, made, TEXT[12:16])


def test_seals_of_a_failed_step_are_taken_back_in_all_groups() -> None:
    kv = cache(attention_groups=[FULL, window(6)])
    made = sequence(kv, TEXT[:8])
    admit(kv, 0, made, step=3)
    assert kv.lookup(sequence(kv, TEXT[:9])).tokens == 8
    assert len(kv.index.retract()) == 4
    assert kv.lookup(sequence(kv, TEXT[:9])) is MISS


def test_what_is_doubtful_is_unfindable_in_all_groups_also_if_it_was_passed() -> None:
    kv = cache(attention_groups=[FULL, window(6)])
    made = put(kv, 0, TEXT[:12])
    kv.tables.slide(np.array([0]), np.array([12], np.int32))
    assert len(kv.unseal(0, made, 0)) == 6
    assert kv.lookup(sequence(kv, TEXT[:13])) is MISS
    kv.check()


def test_events_report_the_group_with_full_attention() -> None:
    kv = cache(attention_groups=[window(6), FULL], enable_kv_cache_events=True)
    made = put(kv, 0, TEXT[:8])
    events = kv.events
    assert events is not None
    assert [one.key for one in events if isinstance(one, BlockStored)] == made.keys
    kv.unseal(0, made, 1)
    assert events[2:] == [BlockRemoved(made.keys[1])]


def test_without_a_prefix_cache_nothing_is_found() -> None:
    kv = cache(attention_groups=[FULL, window(6)], enable_prefix_caching=False)
    made = put(kv, 0, TEXT[:12])
    kv.tables.slide(np.array([0]), np.array([12], np.int32))
    kv.release(0, made, 12)
    kv.check()
    assert kv.lookup(sequence(kv, TEXT[:13])) is MISS
    assert kv.pool.cached == 0


# -- with a connector --------------------------------------------------------


def offering(kv: KVCache, made: Sequence, *places: tuple[int, int]) -> Offer:
    """A connector that has the blocks of some indices and groups."""
    there = {kv.index.names(made.keys[index])[group] for index, group in places}

    def offer(keys: Keys, have: int) -> int:
        absent = (at for at, key in enumerate(keys[have:]) if key not in there)
        return next(absent, len(keys) - have)

    return offer


FIRST_FOUR = [(index, 0) for index in range(4)]


@pytest.mark.parametrize(
    ("there", "blocks", "loaded"),
    [
        ([*FIRST_FOUR, (2, 1), (3, 1)], 4, 6),  # the window before 16: blocks 2 and 3
        ([*FIRST_FOUR, (3, 1)], 0, 0),
        ([*FIRST_FOUR, (0, 1), (3, 1)], 1, 2),
        ([*FIRST_FOUR[:3], (1, 1), (2, 1), (3, 1)], 3, 5),
        ([(0, 1), (1, 1)], 0, 0),
    ],
)
def test_only_what_each_group_reads_is_loaded(
    there: list[tuple[int, int]], blocks: int, loaded: int
) -> None:
    kv = cache(attention_groups=(FULL, window(8)))
    made = sequence(kv, TEXT[:17])
    found = kv.index.loadable(made, kv.usable(made), MISS, offering(kv, made, *there))
    assert found is not None
    assert (found.blocks, len(found.keys)) == (blocks, loaded)
    names = [key for index in range(blocks) for key in kv.index.names(made.keys[index])]
    assert [name for name in names if name in found.keys] == list(found.keys)  # by index


def test_what_the_device_has_is_held_and_not_loaded() -> None:
    kv = cache(attention_groups=(FULL, window(8)))
    made = left_behind(kv, 16)
    forget(kv, made, 0, 1)
    forget(kv, made, 1, 2)
    newcomer = sequence(kv, TEXT[:17])
    hit, every = kv.lookup(newcomer), offering(kv, made, (1, 0), (2, 1))
    assert hit.tokens == 4
    found = kv.index.loadable(newcomer, 4, hit, every)
    assert found is not None
    assert found.keys == (kv.index.names(made.keys[1])[0], kv.index.names(made.keys[2])[1])
    assert (found.first, found.blocks, found.hit.tokens, len(found.hit.device)) == (1, 4, 16, 4)
    assert kv.tables.missing(found.hit, 17) == 2 + 4 + 2  # to load, on the device, for the rest
    later = kv.index.loadable(newcomer, 4, hit, lambda keys, have: None)
    assert later is None


def test_a_lookup_after_a_swap_finds_blocks_of_its_own_group() -> None:
    """The blocks of all groups and those of one may end with the same block."""
    config = CacheConfig(num_blocks=64, block_size=1, attention_groups=(FULL, window(40)))
    kv = KVCache(config, SLOTS, 40)
    made = left_behind(kv, 17)
    assert len(kv.find_read(made, 16)) == 32
    hit = kv.lookup(made)
    own = [[kv.pool.block_of(kv.index.names(key)[group]) for key in made.keys] for group in (0, 1)]
    assert [list(group) for group in hit.groups] == [own[0][:16], own[1][:16]]


def test_after_a_swap_the_blocks_before_the_first_that_is_gone_are_found() -> None:
    kv = cache(attention_groups=[FULL, window(40)])
    made = left_behind(kv, 17)
    forget(kv, made, 0, 2)
    assert len(kv.find_read(made, 16)) == 4  # two indices of two groups
    forget(kv, made, 1, 0)
    assert len(kv.find_read(made, 16)) == 1


def test_content_from_elsewhere_is_reported_and_found() -> None:
    kv = cache(attention_groups=[window(6), FULL], enable_kv_cache_events=True)
    made = sequence(kv, TEXT[:9])
    names = [name for key in made.keys for name in kv.index.names(key)]
    kv.index.adopt(made, names, blocks := kv.pool.take(4))
    kv.pool.drop(blocks)
    kv.index.seal(0, made, [], None)  # nothing new
    assert kv.events is not None
    assert [one.key for one in kv.events if isinstance(one, BlockStored)] == made.keys
    assert kv.lookup(sequence(kv, TEXT[:9])).tokens == 8
    kv.check()
