"""Snapshots as cache objects: what finds them, what evicts them, and what forgets them."""

from typing import Any

import pytest

from paceline.core.multimodal import ImageInput
from paceline.core.settings.config import CacheConfig
from paceline.kv.cache import KVCache
from paceline.kv.hit import Snapshot
from paceline.kv.snapshots import SnapshotIndex
from tests.kv.support import sequence

TEXT = list(range(100, 130))
SIZE, STATE = 4, 3


class Kept:
    """A cache in which one sequence after another is computed in slot 0."""

    def __init__(self, blocks: int = 40, **settings: Any) -> None:
        config = CacheConfig(num_blocks=blocks, block_size=SIZE, state_blocks=STATE, **settings)
        self.kv = KVCache(config, 2, 64)
        self.step = 0

    @property
    def index(self) -> SnapshotIndex:
        assert self.kv.snapshots is not None
        return self.kv.snapshots

    def leave(self, tokens: list[int], at: int) -> Snapshot | None:
        """A sequence is computed, and leaves the state behind `at` positions. At its end, it leaves
        its last block too."""
        kv, one = self.kv, sequence(self.kv, tokens)
        kv.attach(0, one, kv.lookup(one), len(tokens))
        kv.index.extend_keys(one)
        kv.seal(0, one, len(tokens), None)
        own = kv.tables.partial(0, at) if at == len(tokens) else ()
        taken = self.index.take(one, at, (0, 0), kv.tables.groups, own)
        kv.release(0, one, len(tokens))
        kv.check()
        return taken

    def found(self, tokens: list[int], most: int | None = None) -> int:
        found = self.kv.lookup(sequence(self.kv, tokens), most=most)
        assert (found.snapshot is not None) == (found.tokens > 0)
        return found.tokens


@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("at", [1, 3, 4, 11, 12, 13])
def test_a_hit_ends_at_a_snapshot_at_any_position(at: int, length: int) -> None:
    kept = Kept()
    taken = kept.leave(TEXT[: at + length], at)
    assert taken is not None
    assert len(taken.blocks) == STATE
    assert len(taken.partial) == (at % SIZE > 0)
    assert kept.found(TEXT) == at
    assert kept.found(TEXT, most=at - 1) == 0
    assert kept.found(TEXT[:at]) == 0, "the last token must be computed"
    assert kept.found([*TEXT[: at - 1], 7, *TEXT[at:]]) == 0
    assert kept.kv.pool.free == kept.kv.pool.size, "a snapshot holds no block"


def test_the_deepest_one_counts() -> None:
    kept = Kept()
    for at in (4, 9, 10, 12):
        assert kept.leave(TEXT[:14], at)
    assert [kept.found(TEXT, most) for most in (13, 11, 9, 8, 3)] == [12, 10, 9, 4, 0]
    hit = kept.kv.lookup(sequence(kept.kv, [*TEXT[:11], 7, 7]))
    assert (hit.tokens, hit.cached, len(hit.device)) == (10, 8, 2)


def test_there_is_one_snapshot_of_a_content() -> None:
    kept = Kept()
    assert kept.leave(TEXT[:14], 9)
    assert kept.leave(TEXT[:14], 9) is None
    assert len(kept.index) == 1


def test_a_snapshot_exists_as_long_as_each_of_its_blocks_does() -> None:
    for number in range(STATE + 1):
        kept = Kept()
        taken = kept.leave(TEXT[:14], 9)
        assert taken is not None
        kept.kv.pool.unseal(taken.all_blocks[number], taken.names()[number])
        assert kept.found(TEXT) == 0
        assert taken not in kept.index
        kept.kv.check()


def test_a_snapshot_without_its_kv_is_forgotten() -> None:
    kept = Kept()
    taken = kept.leave(TEXT[:14], 9)
    assert taken is not None
    blank = kept.kv.pool.blank
    one = sequence(kept.kv, TEXT[:8])
    kept.kv.index.extend_keys(one)
    block = kept.kv.pool.block_of(one.keys[1])
    assert block is not None
    kept.kv.pool.unseal(block, one.keys[1])
    assert taken not in kept.index
    assert kept.kv.pool.blank == blank + 1 + STATE + 1


def test_old_snapshots_go_before_kv() -> None:
    kept = Kept(blocks=3 * 3 + 2 * STATE)
    first = kept.leave(TEXT[:12], 12)
    second = kept.leave([7, *TEXT[:11]], 12)
    kept.leave([8, *TEXT[:11]], 12)
    assert first is not None
    assert second is not None
    assert first not in kept.index
    assert second in kept.index
    assert kept.kv.lookup(sequence(kept.kv, TEXT)).cached == 12, "its KV is there"
    kept.index.used(second)
    assert second.uses == 1
    assert kept.leave([9, *TEXT[:11]], 12)
    assert second in kept.index, "it was used last"
    kept.index.supersede(second)
    kept.leave([6, *TEXT[:11]], 12)
    assert second not in kept.index


def test_too_few_free_blocks_are_left_alone() -> None:
    kept = Kept(blocks=4 + STATE - 1)
    assert kept.leave(TEXT[:14], 12) is None
    assert kept.kv.pool.blank == STATE, "nothing was evicted for it"


def test_a_held_snapshot_stays_and_counts_as_needed() -> None:
    kept = Kept(blocks=11)
    taken = kept.leave(TEXT[:14], 9)
    assert taken is not None
    one = sequence(kept.kv, TEXT[:20])
    hit = kept.kv.lookup(one)
    assert kept.kv.missing(hit, 20) == 5 + STATE + 1
    kept.kv.hold_snapshot(one, hit, step=3)
    assert kept.kv.fences.arriving == {one.serial}
    kept.kv.attach(0, one, hit, 20)
    assert taken in kept.index
    kept.kv.check()
    assert kept.index.take(one, 20, (0, 1), 1) is None, "its blocks are not to be had"
    kept.kv.confirm(3)
    kept.kv.release(0, one, 0)
    kept.kv.check()
    assert kept.kv.reset()
    assert not len(kept.index)


def test_what_was_not_written_is_forgotten_if_steps_fail() -> None:
    kept = Kept()
    written, other, latest = (kept.leave([at, *TEXT[:13]], 12) for at in range(3))
    for one, step in ((written, 1), (other, 2)):
        assert one is not None
        one.step = step
    assert latest is not None
    assert other is not None
    other.owner = (1, 5)
    kept.index.confirm(1)
    kept.index.retract((1, 5))
    assert [one in kept.index for one in (written, other, latest) if one] == [True, False, True]
    kept.index.retract()
    assert [one in kept.index for one in (written, other, latest) if one] == [True, False, False]
    forgotten = kept.index.forget_of((0, 0))
    assert written is not None
    assert forgotten == dict(zip(written.all_blocks, written.names(), strict=True))
    assert not len(kept.index)
    kept.kv.check()


def test_snapshots_are_no_kv_events() -> None:
    kept = Kept(enable_kv_cache_events=True)
    kept.leave(TEXT[:14], 9)
    stored = len(kept.kv.taken_events())
    assert stored == 3
    kept.index.clear()
    kept.kv.pool.clear()
    assert not kept.kv.taken_events()


def test_groups_have_a_partial_block_each() -> None:
    window = {"kind": "sliding_window", "window": 6}
    kept = Kept(attention_groups=[{"kind": "full"}, window])
    taken = kept.leave(TEXT[:14], 10)
    assert taken is not None
    assert len(taken.partial) == 2
    one = sequence(kept.kv, TEXT[:16])
    hit = kept.kv.lookup(one)
    assert hit.tokens == 10
    assert [len(group) for group in hit.groups] == [2, 2]
    free = kept.kv.pool.free
    missing = kept.kv.missing(hit, 16)
    kept.kv.hold_snapshot(one, hit, 1)
    kept.kv.attach(0, one, hit, 16)
    assert free - kept.kv.pool.free == missing
    kept.kv.check()


def test_images_make_another_content() -> None:
    """Their placeholders are the same tokens."""
    kept = Kept()
    assert kept.leave(TEXT[:14], 9)
    pictured = sequence(kept.kv, TEXT, images=(ImageInput("cat", 8, 1),))
    assert kept.kv.lookup(pictured).tokens == 0
    later = sequence(kept.kv, TEXT, images=(ImageInput("cat", 9, 1),))
    assert kept.kv.lookup(later).tokens == 9
