"""Block tables: which blocks each slot reads and writes, in order."""

import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np

from paceline.core.arrays import I32, Index, sparse_zeros
from paceline.core.plan import NOTHING_GROWN, Grown, Pairs
from paceline.kv.pool import BlockPool


class BlockTables:
    """One row of blocks per slot.

        table[s]   b0 b1 b2 b3 b4  .  .         held[s] = 5: blocks of slot s

    Every entry is one holder of its block in the pool. Only the methods of this class index
    `table`, so adding an axis to it changes no other module.
    """

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

    def room(self, slot: Index) -> I32:
        """Positions that the blocks of each slot hold."""
        return self.held[slot] * self.block_size

    def short(self, slot: Index, tokens: I32) -> I32:
        """Blocks that each slot needs in addition to hold `tokens[i]` positions."""
        need = -(-tokens // self.block_size) - self.held[slot]
        return np.maximum(need, 0)

    def held_only_by(self, slots: list[int]) -> set[int]:
        """Blocks that would be free if all of `slots` were empty."""
        held = self.count(slots)
        return {block for block, count in held.items() if self._pool.holders(block) == count}

    def shared(self, slot: int) -> int:
        """Leading blocks of a slot that have other holders too. Only prefixes are shared, so a
        binary search finds the last one."""
        row, low, high = self.table[slot], 0, int(self.held[slot])
        while low < high:
            middle = (low + high) // 2
            if self._pool.holders(int(row[middle])) > 1:
                low = middle + 1
            else:
                high = middle
        return low

    def occupied(self) -> list[int]:
        """Slots that hold blocks, in order."""
        slots: list[int] = np.flatnonzero(self.held).tolist()
        return slots

    def count(self, slots: list[int]) -> Counter[int]:
        """How often each block occurs in the rows of `slots`."""
        return Counter(block for slot in slots for block in self.blocks(slot))

    # -- filling and emptying -----------------------------------------------

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
        total = int(blocks.sum())
        owner = np.repeat(slot, blocks)
        within = np.arange(total) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        index = (self.held[owner] + within).astype(np.intp)
        block = np.array(self._pool.take(total), np.int32)
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
