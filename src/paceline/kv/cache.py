"""Logical KV cache: block tables of resident slots, and the prefix index."""

import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32, Index, sparse_zeros
from paceline.core.config import CacheConfig
from paceline.core.events import AllBlocksCleared, BlockStored, CacheEvent
from paceline.core.plan import NOTHING_GROWN, Grown, Pairs
from paceline.core.request import Sequence
from paceline.kv.fence import Fences
from paceline.kv.hit import MISS, Hit
from paceline.kv.keys import KEY_BYTES, Keys
from paceline.kv.pool import BlockPool
from paceline.kv.runs import Run, Unnamed


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Seals of blocks that a step in flight is to fill, for whoever has the slot in an epoch."""

    step: int
    slot: int
    epoch: int
    blocks: list[int]
    keys: list[bytes]


def nobody(slot: int) -> bool:
    """No resident is asked."""
    return False


class KVCache:
    """Which blocks each slot reads and writes, in order.

        table[s]   b0 b1 b2 b3 b4  .  .         held[s] = 5: blocks of slot s
                   ------- ~~                   sealed[s] = 3: findable by key

    Full blocks are sealed when somebody looks for what may be in them; `unnamed` says in whom.
    That may be as soon as the step that fills them is planned, because the device runs
    steps in order. Until that step is committed the seal is pending, and `retract` takes
    pending seals back if the step fails.
    """

    def __init__(
        self, config: CacheConfig, slots: int, max_model_len: int, host_blocks: int = 0
    ) -> None:
        self.block_size = config.block_size
        self.enabled = config.enable_prefix_caching
        self.events: list[CacheEvent] | None = [] if config.enable_kv_cache_events else None
        self.pool = BlockPool(config.num_blocks, config.free_order, self.events)
        self.host = BlockPool(host_blocks)
        self.fences = Fences(self.pool, self.host)
        self.keys = Keys(config.block_size)
        self.table = sparse_zeros(slots, self.blocks_for(max_model_len))
        self.held = np.zeros(slots, np.int32)
        self.sealed = [0] * slots
        self.epoch = [0] * slots  # rises when a slot changes hands, as in the SlotTable
        self.unnamed = Unnamed()
        self._start = [b""] * slots  # under which each slot is listed there
        self.rivals: set[int] = set()  # slots that compute the same as another, unseen
        self._pending: deque[Pending] = deque()  # by step

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # -- finding ------------------------------------------------------------

    def name(self, sequence: Sequence) -> None:
        """Give every full block of a sequence a key."""
        if self.enabled:
            self.keys.extend(sequence.keys, sequence.request, sequence.tokens)

    def lookup(self, sequence: Sequence, name_resident: Callable[[int], bool] = nobody) -> Hit:
        """Longest cached prefix, leaving at least the last known token to compute.

        `name_resident` seals what a slot has filled; was there anything?
        """
        if not self.enabled:
            return MISS
        found: list[int] = []
        keys = sequence.keys
        usable = (len(sequence.tokens) - 1) // self.block_size
        while len(found) < usable:
            if len(found) == len(keys):
                self.keys.further(keys, sequence.request, sequence.tokens)
            end = min(len(keys), usable)
            found += self.pool.find(keys[len(found) : end])
            short = len(found) < end
            if short and not self._name_what_follows(sequence, len(found), name_resident):
                break
        return Hit(tuple(found), len(found) * self.block_size) if found else MISS

    def _start_of(self, sequence: Sequence, block: int) -> bytes:
        """How a block of a sequence begins; see `Unnamed`."""
        return self.keys.start(sequence.keys, sequence.request, sequence.tokens, block)

    def _name_what_follows(
        self, sequence: Sequence, found: int, name_resident: Callable[[int], bool]
    ) -> bool:
        """Give keys to blocks that may hold what a sequence has behind `found` blocks; were there
        any?"""
        named, start = False, self._start_of(sequence, found)
        for who in self.unnamed.at(start) + self.unnamed.at(start[:KEY_BYTES]):
            if not isinstance(who, Run):
                named |= name_resident(who)
            elif keys := self._name_run(who):
                named = True
                rest = sequence.tokens[found * self.block_size :].tobytes()
                is_same = rest.startswith(who.content[: len(keys) * self.keys.width])
                if is_same and not sequence.request.items:
                    sequence.keys[found:] = keys  # they need not be hashed again
        return named

    def _name_run(self, run: Run) -> list[bytes]:
        """Give keys to what was left behind, unless it has got them by now."""
        if not run.blocks:
            return []
        parent = run.start[:KEY_BYTES]
        content = run.content[: len(run.blocks) * self.keys.width]
        keys = self.keys.chain(parent, content)
        self.unnamed.remove(run.start, run)
        self.pool.name(run, keys)
        self._name_equals(parent, keys, content)
        return keys

    def _name_equals(self, parent: bytes, keys: list[bytes], content: bytes) -> None:
        """Let those get keys too whose first block without one is equal to one of these.

        A lookup goes past that block without a look at what it might begin.
        """
        starts = range(0, len(content), self.keys.width)
        for before, first in zip((parent, *keys), starts, strict=False):
            self.rivals.update(self._alike(before + content[first : first + self.keys.width]))

    def _alike(self, start: bytes) -> list[int]:
        """Give keys to runs that begin so; returns the residents that do."""
        slots: list[int] = []
        for who in self.unnamed.at(start):
            if isinstance(who, Run):
                self._name_run(who)
            else:
                slots.append(who)
        return slots

    def missing(self, hit: Hit, tokens: int) -> int:
        """Free blocks used up by taking `hit` and growing it to `tokens`."""
        new = self.blocks_for(tokens) - len(hit.blocks)
        return new + self.pool.free_among(hit.blocks)

    # -- holding ------------------------------------------------------------

    def attach(self, slot: int, sequence: Sequence, hit: Hit, tokens: int) -> tuple[int, ...]:
        """Give an empty slot the blocks of `hit` plus new ones up to `tokens`."""
        self.pool.hold(hit.blocks)  # before taking, lest a hit be evicted for its own sake
        blocks = hit.blocks + tuple(self.pool.take(self.blocks_for(tokens) - len(hit.blocks)))
        self.place(slot, sequence, blocks, len(hit.blocks))
        return blocks

    def place(self, slot: int, sequence: Sequence, blocks: tuple[int, ...], sealed: int) -> None:
        """Map blocks that are held already into an empty slot; the first few are sealed."""
        assert self.held[slot] == 0, f"slot {slot} already holds blocks"
        assert len(blocks) <= self.table.shape[1], f"slot {slot} has no room for {len(blocks)}"
        row = slot * self.table.strides[0]
        struct.pack_into(f"{len(blocks)}i", self.table.data, row, *blocks)  # faster than numpy
        self.held[slot] = len(blocks)
        if self.enabled:
            self.sealed[slot] = sealed
            self._list(slot, sequence)

    def short(self, slot: Index, tokens: I32) -> I32:
        """Blocks each slot lacks to hold `tokens[i]` positions."""
        need = -(-tokens // self.block_size) - self.held[slot]
        return np.maximum(need, 0)

    def grow(self, slot: Index, blocks: I32) -> Grown:
        """Append `blocks[i]` new blocks to each slot."""
        most = int(blocks.max(initial=0))
        if most == 0:
            return NOTHING_GROWN
        if most == 1:
            return self.grow_by_one(slot[blocks > 0])
        total = int(blocks.sum())
        owner = np.repeat(slot, blocks)
        within = np.arange(total) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        index = (self.held[owner] + within).astype(np.intp)
        block = np.array(self.pool.take(total), np.int32)
        self.table[owner, index] = block
        self.held[slot] += blocks
        return Grown(owner, index, block)

    def grow_by_one(self, slot: Index) -> Grown:
        """Append one block to each slot."""
        index = self.held[slot].astype(np.intp)
        block = np.array(self.pool.take(len(slot)), np.int32)
        self.table[slot, index] = block
        self.held[slot] = index + 1
        return Grown(slot, index, block)

    def release(self, slot: int, sequence: Sequence, tokens: int = 0) -> None:
        """Drop all blocks, deepest first so that shared prefixes outlive tails.

        The full ones of the first `tokens` positions stay findable.
        """
        blocks = self.blocks(slot)
        if self.enabled:
            self._leave(slot, sequence, blocks[: tokens // self.block_size])
            self.rivals.discard(slot)
        self.pool.drop(reversed(blocks))
        self.held[slot] = 0
        self.sealed[slot] = 0
        self.epoch[slot] += 1

    def _leave(self, slot: int, sequence: Sequence, full: list[int]) -> None:
        """Leave those of the blocks in `full` that have no key behind as a run.

        Not so if somebody listens to events, or if its keys need more than tokens.
        """
        if self.events is not None or sequence.request.items:
            self.name(sequence)
            self.seal(slot, sequence, len(full) * self.block_size, step=None)
        first, listed = self.sealed[slot], self._start[slot]
        if len(full) <= first:
            self.unnamed.remove(listed, slot)
            return
        start = listed if len(listed) > KEY_BYTES else self._start_of(sequence, first)
        content = sequence.tokens[first * self.block_size : len(full) * self.block_size].tobytes()
        run = Run(self.unnamed, start, content, full[first:])
        if start == listed:
            self.unnamed.succeed(start, slot, run)
        else:
            self.unnamed.remove(listed, slot)
            self.unnamed.add(start, run)
        self.pool.keep(run)

    # -- forking ------------------------------------------------------------
    #
    #     parent   b0 b1 b2 p          full blocks are shared, and the block being written is
    #     child    b0 b1 b2 c          copied, p to c, before the next step writes anything

    def fork(self, parent: int, slot: int, sequence: Sequence, tokens: int) -> Pairs:
        """Give an empty slot the first `tokens` positions of `parent` and room for one more."""
        full, rest = divmod(tokens, self.block_size)
        shared: list[int] = self.table[parent, :full].tolist()
        self.pool.hold(shared)
        (own,) = self.pool.take(1)
        self.place(slot, sequence, (*shared, own), full)
        return ((int(self.table[parent, full]), own),) if rest else ()

    def rebase(self, slot: int, sequence: Sequence, parent: int, tokens: int) -> Pairs:
        """Let a slot go on from the first `tokens` positions of `parent` instead of its own.

        It keeps its own block for what comes next. The full blocks of `parent` must be
        sealed, and the keys of `sequence` be those of the parent.
        """
        full, rest = divmod(tokens, self.block_size)
        shared: list[int] = self.table[parent, :full].tolist()
        self.pool.hold(shared)
        self.pool.drop(reversed(self.table[slot, :full].tolist()))
        self.table[slot, :full] = shared
        if self.enabled:
            self.sealed[slot] = self.sealed[parent]
            self._list(slot, sequence)
        return ((int(self.table[parent, full]), int(self.table[slot, full])),) if rest else ()

    def unlist(self, slot: int) -> None:
        """Nothing will be found in the unsealed blocks of a slot, until it is placed anew."""
        if self.enabled:
            self.unnamed.remove(self._start[slot], slot)

    def _list(self, slot: int, sequence: Sequence) -> None:
        """Let the unsealed blocks of a slot be found.

        Of equal blocks the one that was filled first is found. Where several may come to be,
        keys cannot wait until somebody looks.
        """
        self._start[slot] = start = self._start_of(sequence, self.sealed[slot])
        if len(start) > KEY_BYTES:
            self._watch(slot, sequence, start)
        self.unnamed.add(start, slot)

    def _watch(self, slot: int, sequence: Sequence, start: bytes) -> None:
        """Make a slot and others that begin alike rivals."""
        if others := self._alike(start):
            self.rivals.update(others, [slot])
        if len(sequence.keys) == self.sealed[slot]:
            self.keys.further(sequence.keys, sequence.request, sequence.tokens)
        if self.pool.has(sequence.keys[self.sealed[slot]]):
            self.rivals.add(slot)

    # -- asking -------------------------------------------------------------

    def blocks(self, slot: int) -> list[int]:
        blocks: list[int] = self.table[slot, : self.held[slot]].tolist()
        return blocks

    def held_only_by(self, slots: list[int]) -> set[int]:
        """Blocks that would be free if all of `slots` were empty."""
        held = Counter(block for slot in slots for block in self.blocks(slot))
        return {block for block, count in held.items() if self.pool.holders(block) == count}

    def shared(self, slot: int) -> int:
        """Leading blocks of a slot that others hold too. Sharing ends where a prefix ends."""
        row, low, high = self.table[slot], 0, int(self.held[slot])
        while low < high:
            middle = (low + high) // 2
            if self.pool.holders(int(row[middle])) > 1:
                low = middle + 1
            else:
                high = middle
        return low

    # -- sealing ------------------------------------------------------------

    def seal(self, slot: int, sequence: Sequence, tokens: int, step: int | None) -> None:
        """Make the full blocks of the first `tokens` findable; pending until `step` commits."""
        first, end = self.sealed[slot], min(tokens // self.block_size, len(sequence.keys))
        if not self.enabled or end <= first:
            return
        blocks: list[int] = self.table[slot, first:end].tolist()
        keys = sequence.keys[first:end]
        new = self.pool.seal(blocks, keys)
        if self.events is not None:
            self.events += [self._stored(sequence, sequence.keys.index(key)) for key in new]
        parent = self.tail(slot, sequence)
        content = sequence.tokens[first * self.block_size : end * self.block_size].tobytes()
        self.unlist(slot)
        self.sealed[slot] = end
        self._name_equals(parent, keys, content)
        self._list(slot, sequence)
        if step is not None:
            self._pending.append(Pending(step, slot, self.epoch[slot], blocks, keys))

    def tail(self, slot: int, sequence: Sequence) -> bytes:
        """The key that the first block not yet sealed chains to."""
        return self.keys.parent(sequence.keys, sequence.request, self.sealed[slot])

    def _stored(self, sequence: Sequence, index: int) -> BlockStored:
        size = self.block_size
        return BlockStored(
            key=sequence.keys[index],
            parent=sequence.keys[index - 1] if index else None,
            tokens=tuple(sequence.tokens[index * size : (index + 1) * size].tolist()),
            adapter=sequence.request.adapter,
        )

    def confirm(self, step: int) -> bool:
        """The device has run `step`: what it sealed is filled. Were any fences lifted?"""
        while self._pending and self._pending[0].step <= step:
            self._pending.popleft()
        return self.fences.confirm(step)

    def retract(self, owner: tuple[int, int] | None = None) -> dict[int, bytes]:
        """Steps in flight failed: forget the blocks they were to fill, for all or for one slot and
        epoch. Returns these blocks and the keys they had."""
        forgotten: dict[int, bytes] = {}
        pending, self._pending = self._pending, deque()
        while pending:
            one = pending.pop()
            if owner not in (None, (one.slot, one.epoch)):
                self._pending.appendleft(one)
                continue
            for block, key in zip(reversed(one.blocks), reversed(one.keys), strict=True):
                if self.pool.unseal(block, key):
                    forgotten[block] = key
        return forgotten

    def reset(self) -> bool:
        """Forget all content on the device and on the host, if no block is held."""
        if self.pool.free < self.pool.size or self.host.free < self.host.size:
            return False
        self.pool.clear()
        self.host.clear()
        self.unnamed.clear()
        self._pending.clear()
        if self.events is not None:
            self.events.append(AllBlocksCleared())
        return True

    def check(self) -> None:
        """Every invariant of the device blocks."""
        held = Counter(self.fences.device_blocks())
        for slot in np.flatnonzero(self.held).tolist():
            assert self.sealed[slot] <= self.held[slot]
            held.update(self.blocks(slot))
        self.pool.check(held)
        listed = np.flatnonzero(self.held).tolist() if self.enabled else []
        assert sorted(self.unnamed.slots()) == listed, "somebody cannot be found"
        for run in self.unnamed.runs():
            assert run.blocks and not any(map(self.pool.holders, run.blocks)), "a run is held"
