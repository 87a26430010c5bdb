"""Block tables: which blocks each slot reads and writes, in order."""

import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np

from paceline.core.arrays import I32, Bool, Index, sparse_zeros
from paceline.core.plan import NOTHING_GROWN, Blocks, Grown, Pairs
from paceline.kv.hit import Hit
from paceline.kv.pool import BlockPool


class BlockTables:
    """One row of blocks per slot, for layers with full attention.

        table[s]   b0 b1 b2 b3 b4  .  .         held[s] = 5: blocks of slot s

    Every entry is one holder of its block in the pool. Only the methods of this class and of
    `GroupTables`, which has an axis more, index `table`.
    """

    groups = 1  # tables of each slot
    slides = False  # does a slot give blocks back while it grows?

    def __init__(self, pool: BlockPool, slots: int, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.table = sparse_zeros(slots, blocks)
        self.held = np.zeros(slots, np.int32)
        self._pool = pool

    # -- reading ------------------------------------------------------------

    def blocks(self, slot: int, first: int = 0, end: int | None = None) -> list[int]:
        """The blocks of a slot, or those from `first` to before `end`."""
        last = self.held[slot] if end is None else min(end, int(self.held[slot]))
        blocks: list[int] = self.table[slot, first:last].tolist()
        return blocks

    def entries(self, slot: int) -> tuple[Blocks, ...]:
        """The entries of a slot, for each attention group."""
        return (tuple(self.blocks(slot)),)

    def room(self, slot: Index) -> I32:
        """Positions that the blocks of each slot hold."""
        return self.held[slot] * self.block_size

    def short(self, slot: Index, tokens: I32) -> I32:
        """Blocks that each slot needs in addition to hold `tokens[i]` positions."""
        need = (tokens + (self.block_size - 1)) // self.block_size - self.held[slot]
        return np.maximum(need, 0)

    def unaffordable(self, short: I32) -> Bool:
        """Slots for whose blocks, and for those of the slots before them, too few are free."""
        return (short > 0) & (np.cumsum(short) > self._pool.free)

    def most_blocks(self, tokens: int, width: int = 1, shared: int = 0) -> int:
        """Most blocks that `width` sequences of `tokens` positions hold at a time, if they share
        the first `shared` ones."""
        need = -(-tokens // self.block_size)
        return need + (width - 1) * (need - shared // self.block_size)

    def forked_blocks(self, start: int, tokens: int) -> int:
        """Blocks that a sequence needs for `tokens` positions, if it has those before `start`."""
        return -(-tokens // self.block_size) - start // self.block_size

    def held_only_by(self, slots: list[int]) -> set[int]:
        """Blocks that would be free if all of `slots` were empty."""
        held = self.count(slots)
        return {block for block, count in held.items() if self._pool.holders(block) == count}

    def shared(self, slot: int) -> int:
        """Leading blocks of a slot that have other holders too. Only prefixes are shared, so a
        binary search finds the last one."""
        return self._shared_in(self.table[slot], 0, int(self.held[slot]))

    def _shared_in(self, row: I32, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if self._pool.holders(int(row[middle])) > 1:
                low = middle + 1
            else:
                high = middle
        return low

    def alike(self, slot: int, other: int) -> int:
        """Leading indices at which two slots hold the same blocks."""
        return leading(self.blocks(slot), self.blocks(other))

    def occupied(self) -> list[int]:
        """Slots that hold blocks, in order."""
        slots: list[int] = np.flatnonzero(self.held).tolist()
        return slots

    def count(self, slots: list[int]) -> Counter[int]:
        """How often each block occurs in the rows of `slots`."""
        return Counter(block for slot in slots for block in self.blocks(slot))

    def partial(self, slot: int, tokens: int) -> Blocks:
        """The block of each attention group that the first `tokens` positions fill in part."""
        full, rest = divmod(tokens, self.block_size)
        return (int(self.table[slot, full]),) if rest else ()

    # -- filling and emptying -----------------------------------------------

    def missing(self, hit: Hit, tokens: int) -> int:
        """Free blocks that `attach` uses. A host part needs new blocks, to be loaded into."""
        new = -(-tokens // self.block_size) - len(hit.device)
        return new + self._pool.free_among(hit.device)

    def attach(self, slot: int, hit: Hit, tokens: int) -> tuple[Blocks, ...]:
        """Give an empty slot the device blocks of `hit` and new ones up to `tokens`. Returns its
        entries, for each attention group."""
        self._pool.hold(hit.device)  # first, so that `take` does not evict them
        new = -(-tokens // self.block_size) - len(hit.device)
        blocks = hit.device + tuple(self._pool.take(new))
        self.place(slot, blocks)
        return (blocks,)

    def place(self, slot: int, blocks: Sequence[int]) -> None:
        """Map blocks into an empty slot. The caller holds them."""
        most = self.table.shape[1]
        assert self.held[slot] == 0, f"slot {slot} already holds {self.held[slot]} blocks"
        assert len(blocks) <= most, f"slot {slot} has room for {most} blocks, not {len(blocks)}"
        row = slot * self.table.strides[0]
        struct.pack_into(f"{len(blocks)}i", self.table.data, row, *blocks)  # faster than numpy
        self.held[slot] = len(blocks)

    def clear(self, slot: int) -> list[int]:
        """Empty a slot and return its blocks. The caller drops them."""
        blocks = self.blocks(slot)
        self.held[slot] = 0
        return blocks

    def grow(self, slot: Index, blocks: I32) -> Grown:
        """Append `blocks[i]` new blocks to each slot."""
        most = int(blocks.max(initial=0))
        if most == 0:
            return NOTHING_GROWN
        if most == 1:
            return self.grow_by_one(slot[blocks > 0])
        owner, index = entries(slot, self.held[slot], blocks)
        block = np.array(self._pool.take(len(owner)), np.int32)
        self.table[owner, index] = block
        self.held[slot] += blocks
        return Grown(owner, index, block)

    def grow_by_one(self, slot: Index) -> Grown:
        """Append one block to each slot."""
        index = self.held[slot].astype(np.intp)
        block = np.array(self._pool.take(len(slot)), np.int32)
        self.table[slot, index] = block
        self.held[slot] = index + 1
        return Grown(slot, index, block)

    def grow_at(self, slot: Index, start: I32) -> Grown | None:
        """Append one block to each slot that has no room for position `start[i]`; None if the
        pool has too few."""
        edge = (self.room(slot) == start).nonzero()[0]
        return self.grow_by_one(slot[edge]) if len(edge) <= self._pool.free else None

    # -- swapping -----------------------------------------------------------

    def can_resume(self, slot: int, tokens: int) -> bool:
        """Whether a slot has all blocks that a sequence continuing at `tokens` reads."""
        return True

    def begin_alike(self, tokens: Sequence[int]) -> bool:
        """Whether sequences that go on at these read from the same indices on: then what they
        share comes first in `read` of each."""
        return True

    def read(self, slot: int, tokens: int) -> list[int]:
        """The blocks that a sequence continuing at `tokens` reads, by index."""
        return self.blocks(slot, end=-(-tokens // self.block_size))

    def index_of(self, count: int, tokens: int) -> int:
        """The index behind the first `count` blocks of `read`."""
        return count

    def whole(self, count: int, tokens: int) -> int:
        """How many of the first `count` blocks of `read` have indices that are complete there."""
        return count

    def growth(self, tokens: int, span: int) -> int:
        """Blocks that a slot with `read` blocks needs in addition for `span` positions."""
        return max(-(-span // self.block_size) - -(-tokens // self.block_size), 0)

    def place_read(self, slot: int, blocks: Sequence[int], tokens: int, span: int) -> None:
        """Map the blocks of `read` into an empty slot, and behind them those of `growth`. The
        caller holds them."""
        self.place(slot, blocks)

    # -- sliding: only some attention groups give blocks back while a slot grows ----

    def passing(self, slot: Index, computed: I32) -> I32:
        """Blocks of each group that a slot holds and no position from `computed[i]` on reads,
        [groups, slots]."""
        return np.zeros((self.groups, len(slot)), np.int32)

    def coming(self, slot: Index, planned: I32) -> int:
        """Blocks that become free when the positions before `planned[i]` are computed."""
        return 0

    def slide(self, slot: Index, computed: I32) -> None:
        """Give back the blocks that no position from `computed[i]` on reads, deepest first."""

    # -- forking ------------------------------------------------------------
    #
    #     parent   b0 b1 b2 p          full blocks are shared, and the block being written is
    #     child    b0 b1 b2 c          copied, p to c, before the next step writes anything

    def fork(self, parent: int, slot: int, tokens: int) -> Pairs:
        """Give an empty slot the first `tokens` positions of `parent` and room for one more.
        Returns the copies to make."""
        full = tokens // self.block_size
        shared = self.blocks(parent, end=full)
        self._pool.hold(shared)
        self.place(slot, (*shared, *self._pool.take(1)))
        return self._copy_of_rest(parent, slot, tokens)

    def rebase(self, slot: int, parent: int, tokens: int) -> Pairs:
        """Replace the first `tokens` positions of a slot with those of `parent`.

        The slot keeps its own block for the next position. Returns the copies to make.
        """
        full = tokens // self.block_size
        shared = self.blocks(parent, end=full)
        self._pool.hold(shared)
        self._pool.drop(reversed(self.blocks(slot, end=full)))
        self.table[slot, :full] = shared
        return self._copy_of_rest(parent, slot, tokens)

    def _copy_of_rest(self, parent: int, slot: int, tokens: int) -> Pairs:
        """The copy of the partial last block; empty if `tokens` fill whole blocks."""
        full, rest = divmod(tokens, self.block_size)
        return ((int(self.table[parent, full]), int(self.table[slot, full])),) if rest else ()


def leading(row: Sequence[int], other: Sequence[int]) -> int:
    """How many of the first entries of two rows are the same."""
    pairs = enumerate(zip(row, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(row), len(other)))


def entries(slot: Index, first: I32, count: I32) -> tuple[Index, Index]:
    """`count[i]` consecutive indices for each slot, beginning at `first[i]`: slots and indices."""
    owner = np.repeat(slot, count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return owner, (np.repeat(first, count) + within).astype(np.intp)
