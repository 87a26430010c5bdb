"""Snapshots: states of sequences at some position, kept in blocks of the pool."""

from collections.abc import Callable
from dataclasses import replace

from paceline.core.plan import Blocks
from paceline.core.request import Sequence
from paceline.kv.hit import Hit, Owner, Snapshot, StatePlace
from paceline.kv.keys import Keys, image_bytes
from paceline.kv.pool import BlockPool

NEAR = 1024  # positions before the end of what was found, each of which may have a state elsewhere
NO_OWNER: Owner = (-1, -1)
ADOPTED = "BRANCH"  # the point of a snapshot that another engine may have taken


class SnapshotIndex:
    """Snapshots by the key of their last full block.

    A snapshot can be found as soon as a plan lists it: the device makes the copies of plans in
    order. Until that step is committed it is unwritten, and `retract` forgets it if the step fails.
    A snapshot whose last full block cannot be found any more is of no use, and is forgotten too.
    """

    def __init__(self, pool: BlockPool, keys: Keys, state_blocks: int) -> None:
        self._pool = pool
        self._keys = keys
        self._size = state_blocks
        self._made = 0
        self._at: dict[bytes, list[Snapshot]] = {}
        self._of_block: dict[int, Snapshot] = {}
        self._listed: dict[int, Snapshot] = {}  # by number
        self._unwritten: list[Snapshot] = []
        pool.lost = self._lost

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, snapshot: Snapshot) -> bool:
        return snapshot.number in self._listed

    def has_block(self, block: int) -> bool:
        """Is a block part of a snapshot?"""
        return block in self._of_block

    # -- finding ------------------------------------------------------------

    def limit(
        self, sequence: Sequence, found: Hit, most: int, shorter: Callable[[int], Hit]
    ) -> Hit:
        """The part of a hit that ends at the deepest snapshot, of at most `most` tokens, and the
        snapshot. `shorter` finds the hit of so many blocks."""
        size = self._keys.block_size
        blocks = found.tokens // size
        for full in range(blocks, -1, -1):
            key = self._keys.parent(sequence.keys, sequence.request, full)
            for snapshot in self._by_depth(key):
                tokens = snapshot.tokens
                if tokens > most or self._rest(sequence, tokens) != snapshot.place.rest:
                    continue
                hit = found if full == blocks else shorter(full)
                if hit.tokens == full * size:
                    return replace(hit, tokens=tokens, snapshot=snapshot, cached=found.tokens)
        return Hit((), 0, cached=found.tokens)

    def _by_depth(self, key: bytes) -> list[Snapshot]:
        listed = self._at.get(key)
        return sorted(listed, key=lambda one: -one.tokens) if listed else []

    def _rest(self, sequence: Sequence, tokens: int) -> bytes:
        """The content of a sequence between its last full block and position `tokens`."""
        first = tokens - tokens % self._keys.block_size
        content = sequence.tokens[first:tokens].tobytes()
        images = sequence.request.images
        return content + image_bytes(images, first, tokens) if content and images else content

    def sought(self, sequence: Sequence, tokens: int, above: int) -> list[StatePlace]:
        """Where a sequence could go on that has the KV of its first `tokens` positions in full
        blocks or the one behind them: the ends of blocks, and of the last `NEAR` positions all.
        Deepest first, down to those before `above`."""
        size = self._keys.block_size
        near = range(tokens, max(above, tokens - NEAR), -1)
        ends = range((near.stop // size) * size, above, -size)
        return [self._place(sequence, end) for end in (*near, *ends)]

    def _place(self, sequence: Sequence, tokens: int) -> StatePlace:
        full = tokens // self._keys.block_size
        key = self._keys.parent(sequence.keys, sequence.request, full)
        return StatePlace(tokens, key, self._rest(sequence, tokens))

    def state_blocks(self, place: StatePlace, groups: int) -> int:
        """Blocks of a snapshot, whose partial blocks are one of each of `groups`."""
        return self._size + (groups if place.rest else 0)

    def used(self, snapshot: Snapshot) -> None:
        """A hit begins with this snapshot."""
        snapshot.uses += 1

    # -- taking -------------------------------------------------------------

    def take(
        self, sequence: Sequence, tokens: int, owner: Owner, groups: int, partial: Blocks = ()
    ) -> Snapshot | None:
        """Give the state behind `tokens` positions blocks to be copied to. None if there are too
        few free blocks, or if there is such a snapshot.

        The full blocks before it are sealed. `partial` are blocks with the KV behind those, which
        no sequence will write again; without them, such a snapshot gets blocks for copies, one for
        each of `groups`.
        """
        pool, place = self._pool, self._place(sequence, tokens)
        count = self._size if partial else self.state_blocks(place, groups)
        if self._has(place) or pool.free < count:
            return None
        taken = tuple(pool.take(count))
        one = self._list(place, taken, owner, partial)
        pool.drop(taken)  # findable, and free
        self._unwritten.append(one)
        return one

    def adopt(self, place: StatePlace, blocks: Blocks) -> None:
        """List a snapshot in blocks that were filled outside of any slot. The caller holds them."""
        if not self._has(place):
            self._list(place, blocks, NO_OWNER).point = ADOPTED

    def _has(self, place: StatePlace) -> bool:
        return any(one.place == place for one in self._at.get(place.key, ()))

    def _list(
        self, place: StatePlace, blocks: Blocks, owner: Owner, partial: Blocks = ()
    ) -> Snapshot:
        self._made += 1
        state, own = blocks[: self._size], blocks[self._size :]
        one = Snapshot(self._made, place, state, partial or own, owner)
        self._pool.seal(one.all_blocks, one.names())
        self._at.setdefault(place.key, []).append(one)
        self._of_block |= dict.fromkeys(one.all_blocks, one)
        self._listed[one.number] = one
        return one

    def supersede(self, snapshot: Snapshot) -> None:
        """A deeper one of the same sequence is there: evict this one before anything else."""
        if snapshot in self:
            self._pool.age(snapshot.all_blocks)

    # -- forgetting ---------------------------------------------------------

    def forget(self, snapshot: Snapshot) -> None:
        """Make a snapshot unfindable; its blocks become blank unless they are held."""
        if snapshot not in self:
            return
        del self._listed[snapshot.number]
        listed = self._at[snapshot.place.key]
        listed.remove(snapshot)
        if not listed:
            del self._at[snapshot.place.key]
        for block in snapshot.all_blocks:
            del self._of_block[block]
        for block, name in zip(snapshot.all_blocks, snapshot.names(), strict=True):
            self._pool.unseal(block, name)

    def _lost(self, block: int, key: bytes) -> None:
        """The pool has forgotten the content of a block; no other block has this key."""
        if (own := self._of_block.get(block)) is not None:
            self.forget(own)
        for one in list(self._at.get(key, ())):
            self.forget(one)

    def forget_of(self, owner: Owner) -> dict[int, bytes]:
        """Forget the snapshots of a sequence. Returns their blocks and the keys that these had."""
        forgotten: dict[int, bytes] = {}
        for one in [one for one in self._listed.values() if one.owner == owner]:
            forgotten |= zip(one.all_blocks, one.names(), strict=True)
            self.forget(one)
        return forgotten

    # -- steps --------------------------------------------------------------

    def confirm(self, step: int) -> None:
        """The device has run `step`: what it writes is written."""
        if self._unwritten:
            self._unwritten = [
                one for one in self._unwritten if one.step is None or one.step > step
            ]

    def retract(self, owner: Owner | None = None) -> None:
        """Steps in flight failed: forget what they were to write, of all sequences or of one."""
        failed = [one for one in self._unwritten if owner in (None, one.owner)]
        self._unwritten = [one for one in self._unwritten if one not in failed]
        for one in failed:
            self.forget(one)

    def clear(self) -> None:
        """Forget all snapshots. The pool forgets their keys."""
        for kept in (self._at, self._of_block, self._listed, self._unwritten):
            kept.clear()

    def check(self) -> None:
        """Verify every invariant."""
        listed = {one.number for found in self._at.values() for one in found}
        assert listed == self._listed.keys(), "snapshots are lost"
        for one in self._listed.values():
            for block, name in zip(one.all_blocks, one.names(), strict=True):
                assert self._pool.content_of(block) == name, f"block {block} lost its state"
                assert self._of_block[block] is one
        blocks = sum(len(one.all_blocks) for one in self._listed.values())
        assert blocks == len(self._of_block), "a block is of two snapshots"
