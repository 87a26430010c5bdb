"""Logical KV cache: block tables of resident slots, and the prefix index."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32, Index, sparse_zeros
from paceline.core.config import CacheConfig
from paceline.core.events import AllBlocksCleared, BlockStored, CacheEvent
from paceline.core.plan import NOTHING_GROWN, Grown, Pairs
from paceline.core.request import Sequence
from paceline.kv.keys import Keys
from paceline.kv.pool import BlockPool


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix found in the cache."""

    blocks: tuple[int, ...]
    tokens: int


MISS = Hit((), 0)


class KVCache:
    """Which blocks each slot reads and writes, in order.

        table[s]   b0 b1 b2 b3 b4  .  .         held[s] = 5: blocks of slot s
                   ------- ~~                   sealed[s] = 3: findable by key

    A block may be sealed as soon as the step that fills it is planned, because the
    device runs steps in order. Until that step is committed the seal is pending, and
    `retract` takes pending seals back if the step fails.
    """

    def __init__(self, config: CacheConfig, slots: int, max_model_len: int) -> None:
        self.block_size = config.block_size
        self.enabled = config.enable_prefix_caching
        self.events: list[CacheEvent] | None = [] if config.enable_kv_cache_events else None
        self.pool = BlockPool(config.num_blocks, config.free_order, self.events)
        self.keys = Keys(config.block_size)
        self.table = sparse_zeros(slots, self.blocks_for(max_model_len))
        self.held = np.zeros(slots, np.int32)
        self.sealed = [0] * slots
        self._tails: dict[bytes, list[int]] = {}  # slots by the key of their last sealed block
        self._pending: deque[tuple[int, list[int], list[bytes]]] = deque()  # by step

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # -- finding ------------------------------------------------------------

    def name(self, sequence: Sequence) -> None:
        """Give every full block of a sequence outside its slot a key."""
        if self.enabled:
            self.keys.extend(sequence.keys, sequence.request, sequence.tokens)

    def lookup(self, sequence: Sequence) -> Hit:
        """Longest cached prefix, leaving at least the last known token to compute."""
        usable = (len(sequence.tokens) - 1) // self.block_size
        blocks = self.pool.find(sequence.keys[:usable])
        return Hit(tuple(blocks), len(blocks) * self.block_size) if blocks else MISS

    def uncached(self, sequence: Sequence) -> int:
        """Known tokens of a waiting sequence that would have to be computed."""
        return len(sequence.tokens) - self.lookup(sequence).tokens

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
        self.table[slot, : len(blocks)] = blocks
        self.held[slot] = len(blocks)
        self.sealed[slot] = sealed if self.enabled else 0
        if self.enabled:
            self._tails.setdefault(self.tail(slot, sequence), []).append(slot)

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

    def release(self, slot: int, sequence: Sequence) -> None:
        """Drop all blocks, deepest first so that shared prefixes outlive tails."""
        blocks = self.blocks(slot)
        if self.enabled:
            self._leave_tail(slot, sequence)
        self.pool.drop(reversed(blocks))
        self.held[slot] = 0
        self.sealed[slot] = 0

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
        self.sealed[slot] = self.sealed[parent]
        if self.enabled:
            self._tails.setdefault(self.tail(slot, sequence), []).append(slot)
        return ((int(self.table[parent, full]), int(self.table[slot, full])),) if rest else ()

    def leave_tail(self, slot: int, sequence: Sequence) -> None:
        """Nothing will be found behind the blocks of a slot, until it is placed anew."""
        if self.enabled:
            self._leave_tail(slot, sequence)

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
        self._leave_tail(slot, sequence)
        self.sealed[slot] = end
        self._tails.setdefault(keys[-1], []).append(slot)
        if step is not None:
            self._pending.append((step, blocks, keys))

    def tail(self, slot: int, sequence: Sequence) -> bytes:
        """The key that the first block not yet sealed chains to."""
        sealed = self.sealed[slot]
        return sequence.keys[sealed - 1] if sealed else self.keys.root(sequence.request)

    def continuing(self, sequence: Sequence, hit: Hit) -> list[int]:
        """Slots whose unsealed blocks, if any, would come right after `hit` of a sequence."""
        found = len(hit.blocks)
        if not self.enabled or found >= (len(sequence.tokens) - 1) // self.block_size:
            return []
        parent = sequence.keys[found - 1] if found else self.keys.root(sequence.request)
        return list(self._tails.get(parent, ()))

    def _leave_tail(self, slot: int, sequence: Sequence) -> None:
        key = self.tail(slot, sequence)
        slots = self._tails[key]
        slots.remove(slot)
        if not slots:
            del self._tails[key]

    def _stored(self, sequence: Sequence, index: int) -> BlockStored:
        size = self.block_size
        return BlockStored(
            key=sequence.keys[index],
            parent=sequence.keys[index - 1] if index else None,
            tokens=tuple(sequence.tokens[index * size : (index + 1) * size].tolist()),
            adapter=sequence.request.adapter,
        )

    def confirm(self, step: int) -> None:
        """The device has filled what `step` sealed."""
        while self._pending and self._pending[0][0] <= step:
            self._pending.popleft()

    def retract(self) -> None:
        """Steps in flight failed: forget every block they were to fill."""
        while self._pending:
            _, blocks, keys = self._pending.pop()
            for block, key in zip(reversed(blocks), reversed(keys), strict=True):
                self.pool.unseal(block, key)

    def reset(self) -> bool:
        """Forget all content, if no block is held."""
        if self.pool.free < self.pool.size:
            return False
        self.pool.clear()
        self._pending.clear()
        if self.events is not None:
            self.events.append(AllBlocksCleared())
        return True

    def check(self, fenced: Iterable[int] = ()) -> None:
        """Every invariant; blocks in `fenced` have one more holder for each time listed."""
        held = Counter(fenced)
        for slot in np.flatnonzero(self.held).tolist():
            assert self.sealed[slot] <= self.held[slot]
            held.update(self.blocks(slot))
        self.pool.check(held)
