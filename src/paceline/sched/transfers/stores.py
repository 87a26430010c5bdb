"""What a connector gets to keep: the full blocks of sequences that have sampled from them."""

from collections.abc import Mapping
from typing import Any

from paceline.core.request import Finish, Sequence
from paceline.kv.cache import KVCache
from paceline.kv.connector import Transfer
from paceline.sched.slots import SlotTable
from paceline.sched.transfers.connector_link import ConnectorLink


class Stores:
    """Stores blocks when a sequence has sampled from them, and again when it leaves its slot.

    Blocks are thus stored long before they are evicted, so that taking a block never waits. A
    sequence that has sampled has read all blocks before, so what is stored is known to be good, and
    complete on the device. When it leaves, the connector hears of all its blocks again, since they
    were in use until now.
    """

    def __init__(self, link: ConnectorLink, table: SlotTable, cache: KVCache) -> None:
        self._link = link
        self._table = table
        self._cache = cache

    @property
    def wanted(self) -> bool:
        return self._link.stores

    def sampled(self, slot: int) -> None:
        """A resident has sampled from all that it was given."""
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
        """Offer the blocks of a resident that ends to another engine. Returns what its client
        gets to know."""
        if not (self._link.hands_over and self._link.stores):
            return None
        slot, table = sequence.slot, self._table
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        tokens = min(int(table.computed[slot]), int(table.known[slot]))
        blocks = self._sealed(slot, sequence, tokens)
        return self._link.finished(self._transfer(sequence, 0, blocks), finish)

    def _sealed(self, slot: int, sequence: Sequence, tokens: int) -> list[tuple[bytes, int]]:
        """Full blocks with their keys, which they are findable by from now on."""
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
