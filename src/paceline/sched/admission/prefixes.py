"""Prefix lookups of waiting sequences, and sealing of residents' blocks.

A steady step seals nothing, and most blocks are never looked up, so they are hashed only when a
lookup, a departure or an event needs their keys.
"""

from typing import Protocol

import numpy as np

from paceline.core.arrays import Index
from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import MISS, Hit
from paceline.sched.slots import SlotTable


class BlocksView(Protocol):
    """The part of the scheduler's state that `Prefixes` reads."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def cache(self) -> KVCache: ...

    @property
    def step(self) -> int:
        """The latest step planned."""
        ...


class Prefixes:
    """Looks up prefixes, and seals full blocks of residents so that lookups find them."""

    def __init__(self, view: BlocksView) -> None:
        self._view = view

    def lookup(self, sequence: Sequence, most: int | None = None) -> Hit:
        """The longest prefix on the device and the host that is computed or planned, at most `most`
        tokens."""
        if not sequence.request.reads_cache:
            return MISS
        if self._view.cache.index.is_eager:
            self._seal_all_filled()
        return self._view.cache.lookup(sequence, self.seal_filled, most)

    def lookup_device(self, sequence: Sequence) -> Hit:
        """The longest prefix on the device alone."""
        if not sequence.request.reads_cache:
            return MISS
        if self._view.cache.index.is_eager:
            self._seal_all_filled()
        return self._view.cache.lookup_device(sequence, self.seal_filled)

    def seal_filled(self, slot: int) -> bool:
        """Seal the planned full blocks of a resident. Returns whether there were any."""
        table, step = self._view.table, self._view.step
        known = int(table.known[slot])
        done = self._seal(slot, min(int(table.computed[slot]), known), None)
        return self._seal(slot, min(int(table.planned[slot]), known), step) or done

    def seal_rivals(self) -> None:
        """Seal the blocks of residents that compute the same tokens as another, oldest first."""
        table, index = self._view.table, self._view.cache.index
        if not index.rivals:
            return
        for slot in [slot for slot in table.order.tolist() if slot in index.rivals]:
            self.seal_filled(slot)
            if index.sealed[slot] >= int(table.given[slot]) // self._view.cache.block_size:
                index.rivals.discard(slot)

    def _seal_all_filled(self) -> None:
        """Seal the planned full blocks of all residents, oldest first."""
        table, cache = self._view.table, self._view.cache
        order = table.order
        filled = np.minimum(table.planned[order], table.known[order]) // cache.block_size
        if cache.index.enabled:
            for slot in order[filled > np.array(cache.index.sealed)[order]].tolist():
                self.seal_filled(slot)

    def give_back_unread(self, slot: Index) -> bool:
        """Release the blocks of residents that no later position reads; they stay cached. Returns
        whether there were any."""
        tables, table = self._view.cache.tables, self._view.table
        computed = table.computed[slot]
        passing = tables.passing(slot, computed).any(axis=0)
        slot, computed = slot[passing], computed[passing]
        for one, tokens in zip(slot.tolist(), computed.tolist(), strict=True):
            self._seal(one, tokens, None)
        tables.slide(slot, computed)
        return bool(len(slot))

    def seal_computed(self) -> None:
        """Seal all full blocks that residents have computed."""
        table, cache = self._view.table, self._view.cache
        order = table.order
        filled = np.minimum(table.computed[order], table.known[order])
        due = filled // cache.block_size > np.array(cache.index.sealed)[order]
        for slot, tokens in zip(order[due].tolist(), filled[due].tolist(), strict=True):
            self._seal(slot, tokens, None)

    def _seal(self, slot: int, tokens: int, step: int | None) -> bool:
        """Seal the full blocks of the first `tokens` positions; `step` is the one in flight that
        fills them, if any. Returns whether any got sealed: lookups repeat until none is."""
        table, cache = self._view.table, self._view.cache
        before = cache.index.sealed[slot]
        if tokens // cache.block_size <= before or not cache.index.enabled:
            return False
        sequence = table.sequence(slot)
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        cache.index.extend_keys(sequence)
        cache.seal(slot, sequence, tokens, step)
        return cache.index.sealed[slot] > before
