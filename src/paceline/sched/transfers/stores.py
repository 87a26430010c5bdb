"""Stores full blocks with a connector."""

from collections.abc import Mapping
from typing import Any

from paceline.core.request import Finish, Sequence
from paceline.kv.cache import KVCache
from paceline.kv.connector import Transfer
from paceline.sched.slots import SlotTable
from paceline.sched.transfers.connector_link import ConnectorLink


class Stores:
    """Stores the blocks of a sequence at its first sample, and again when it leaves its slot.

    So blocks are stored long before they are evicted, and taking a block never waits. A sequence
    that has sampled has read all blocks before, so these are complete and known to be good. When it
    leaves, all its blocks are stored again, which tells the connector that they were in use.
    """

    def __init__(self, link: ConnectorLink, table: SlotTable, cache: KVCache) -> None:
        self._link = link
        self._table = table
        self._cache = cache

    @property
    def wanted(self) -> bool:
        return self._link.stores

    def sampled(self, slot: int) -> None:
        """Store the blocks of a resident at its first sample."""
        table = self._table
        sequence = table.sequence(slot)
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        self.store(slot, sequence, min(int(table.computed[slot]), int(table.known[slot])))

    def store(self, slot: int, sequence: Sequence, tokens: int) -> None:
        """Store the full blocks of the first `tokens` positions of a slot."""
        blocks = self._sealed(slot, sequence, tokens)
        first = self._link.keep([key for key, _ in blocks]) if blocks else 0
        if first < len(blocks):
            transfer = self._transfer(sequence, first, blocks)
            if (events := self._link.tier_events) is not None:
                stored = self._cache.index.stored_events(sequence, transfer.keys, events.medium)
                events.store(stored)
            self._link.store(transfer)

    def hand_over(self, sequence: Sequence, finish: Finish) -> Mapping[str, Any] | None:
        """Offer the blocks of an ending resident to another engine. Returns the parameters for its
        client."""
        if not (self._link.hands_over and self._link.stores):
            return None
        slot, table = sequence.slot, self._table
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        tokens = min(int(table.computed[slot]), int(table.known[slot]))
        blocks = self._sealed(slot, sequence, tokens)
        return self._link.finished(self._transfer(sequence, 0, blocks), finish)

    def _sealed(self, slot: int, sequence: Sequence, tokens: int) -> list[tuple[bytes, int]]:
        """Seal the full blocks; returns them with their keys."""
        cache = self._cache
        cache.index.extend_keys(sequence)
        cache.seal(slot, sequence, tokens, None)
        entries, count = cache.tables.entries(slot), tokens // cache.block_size
        return cache.index.full_blocks(sequence, entries, count)

    def _transfer(
        self, sequence: Sequence, first: int, blocks: list[tuple[bytes, int]]
    ) -> Transfer:
        keys, numbers = zip(*blocks[first:], strict=True) if first < len(blocks) else ((), ())
        return Transfer(self._link.ticket(), sequence.request, first, keys, numbers)
