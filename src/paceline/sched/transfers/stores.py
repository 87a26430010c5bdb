"""Stores full blocks with a connector."""

from collections.abc import Mapping
from typing import Any

from paceline.core.request import Finish, Request, Sequence
from paceline.kv.cache import KVCache
from paceline.kv.connector import Transfer
from paceline.kv.hit import Snapshot
from paceline.sched.slots import SlotTable
from paceline.sched.transfers.connector_link import ConnectorLink
from paceline.sched.transfers.states import States


class Stores:
    """Stores the blocks of a sequence at its first sample, and again when it leaves its slot.

    So blocks are stored long before they are evicted, and taking a block never waits. A sequence
    that has sampled has read all blocks before, so these are complete and known to be good. When it
    leaves, all its blocks are stored again, which tells the connector that they were in use.

    Its snapshots are stored when it first samples. The one behind its last token follows when the
    step that writes it is committed, if it is still there: `_written_later` has it.
    """

    def __init__(
        self, link: ConnectorLink, table: SlotTable, cache: KVCache, states: States
    ) -> None:
        self._link = link
        self._table = table
        self._cache = cache
        self._states = states
        self._written_later: list[tuple[Request, Snapshot]] = []

    @property
    def wanted(self) -> bool:
        return self._link.stores

    def sampled(self, slot: int) -> None:
        """Store the blocks of a resident at its first sample."""
        table = self._table
        sequence = table.sequence(slot)
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        self.store(slot, sequence, min(int(table.computed[slot]), int(table.known[slot])))
        for one in self._states.kept(slot):
            self._store_state(sequence.request, one)

    def left(self, sequence: Sequence, snapshot: Snapshot | None) -> None:
        """A sequence that has sampled left its slot, and the next plan keeps its state."""
        if snapshot is not None:
            self._written_later.append((sequence.request, snapshot))

    def committed(self, step: int) -> None:
        """The device has run `step`: store the states that it wrote."""
        later, self._written_later = self._written_later, []
        for request, one in later:
            if one.step is None or one.step > step:
                self._written_later.append((request, one))
            else:
                self._store_state(request, one)

    def _store_state(self, request: Request, snapshot: Snapshot) -> None:
        """Store a snapshot, unless it was evicted or the connector has it."""
        if not self._states.has(snapshot):
            return
        names, first = snapshot.names(), snapshot.tokens // self._cache.block_size
        if self._link.keep(names) < len(names):
            ticket = self._link.ticket()
            self._link.store(Transfer(ticket, request, first, names, snapshot.all_blocks))

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
