"""Working states of residents: what plans copy, and which of them are kept as snapshots."""

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.plan import NO_STATE_MOVES, Pairs, Rows, StateMoves
from paceline.core.settings.config import CacheConfig
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit, Owner, Snapshot
from paceline.sched import snapshots
from paceline.sched.admission.prefixes import Prefixes
from paceline.sched.slots import SlotTable
from paceline.sched.snapshots import SnapshotPoint


class States:
    """Collects the copies of states for the next plan. With models that keep none, it does nothing.

    Behind all plans so far, the state of a slot is that of its planned positions, unless

        _loads, _copies     the next plan brings it, from a snapshot or from another slot
        _doubtful           a step that was to advance it failed

    branch[s]    position at which a row of s must end, because an earlier sequence had the same
                 tokens up to there; 0: none
    since[s]     tokens of the latest snapshot of s, or of the one that it began with

    `began` has the snapshot that a resident began with, and `_own` those that it left, by slot.
    `_left` are the states of slots that were given up, which the next plan keeps.
    """

    def __init__(
        self, config: CacheConfig, table: SlotTable, cache: KVCache, prefixes: Prefixes
    ) -> None:
        self.enabled = config.state_blocks > 0
        self.snapshots = cache.snapshots
        self.policy = snapshots.load(config)
        self.branch = np.zeros(table.capacity, np.int32)
        self.since = np.zeros(table.capacity, np.int32)
        self.began: dict[int, Snapshot] = {}
        self._own: dict[int, list[Snapshot]] = {}
        self._left: list[tuple[int, Snapshot]] = []
        self._copies: dict[int, int] = {}  # by slot
        self._loads: dict[int, Snapshot] = {}
        self._doubtful: set[int] = set()
        self._table = table
        self._cache = cache
        self._prefixes = prefixes

    # -- sequences that come and go -----------------------------------------

    def admit(self, slot: int, hit: Hit) -> Pairs:
        """A sequence took a slot. Returns the copies of blocks that its hit needs."""
        if not self.enabled:
            return ()
        self.branch[slot] = self.branch_of(hit)
        self.since[slot] = hit.tokens
        self._doubtful.discard(slot)
        if hit.snapshot is None:
            return ()
        self.began[slot] = self._loads[slot] = hit.snapshot
        self.policy.used(SnapshotPoint[hit.snapshot.point])
        own = self._cache.tables.partial(slot, hit.tokens)
        return tuple(zip(hit.snapshot.partial, own, strict=True))

    def branch_of(self, hit: Hit) -> int:
        """Where the rows of a sequence with this hit must end once; 0: nowhere."""
        return self.policy.branch(hit.tokens, hit.cached) if hit.cached > hit.tokens else 0

    def fork(self, parent: int, slot: int) -> None:
        """A sequence forked from another: it has the state that the other has before the plan."""
        if not self.enabled or not self._table.planned[slot]:
            return
        self._copies[slot] = parent
        self.branch[slot], self.since[slot] = 0, self.since[parent]
        self._doubtful.discard(slot)

    def leave(self, slot: int) -> None:
        """A sequence is about to leave its slot: keep its state if only known tokens made it."""
        if not self.enabled:
            return
        is_due = self._loads.pop(slot, None) or self._copies.pop(slot, None) is not None
        known, tokens = int(self._table.known[slot]), int(self._table.planned[slot])
        if not is_due and slot not in self._doubtful and 0 < tokens <= known:
            partial = self._cache.tables.partial(slot, tokens)
            one = self._keep(slot, SnapshotPoint.TURN, tokens, partial)
            if one is not None:
                self._left.append((slot, one))
        self.began.pop(slot, None)
        self._own.pop(slot, None)
        self._doubtful.discard(slot)

    def distrust(self, slots: list[int]) -> None:
        """Steps in flight failed that were to advance these states."""
        self._doubtful.update(slots if self.enabled else ())

    # -- plans --------------------------------------------------------------

    def ends(self, slot: Index, start: I32) -> I32:
        """Where rows that begin at these positions must end; 0: anywhere."""
        ends = np.zeros(len(slot), np.int32)
        for row in np.flatnonzero(start < self._table.given[slot]).tolist():
            ends[row] = self.policy.end(int(start[row]), int(self.branch[slot[row]]))
        return ends

    def moves(self, rows: Rows, start: I32, step: int) -> StateMoves:
        """The copies of a plan."""
        if not self.enabled:
            return NO_STATE_MOVES
        left = [pair for pair in self._left if self.snapshots and pair[1] in self.snapshots]
        kept = self._keep_some(rows, start)
        for _, one in (*left, *kept):
            one.step = step
        moves = StateMoves(
            tuple((slot, one.blocks) for slot, one in left),
            tuple((parent, slot) for slot, parent in self._copies.items()),
            tuple((slot, one.blocks) for slot, one in self._loads.items()),
            tuple((slot, one.blocks) for slot, one in kept),
            tuple(
                pair
                for slot, one in kept
                for pair in zip(
                    self._cache.tables.partial(slot, one.tokens), one.partial, strict=True
                )
            ),
        )
        self._left, self._copies, self._loads = [], {}, {}
        return moves

    def _keep_some(self, rows: Rows, start: I32) -> list[tuple[int, Snapshot]]:
        """Keep states behind the rows of prompts, where the policy wants them."""
        if self.snapshots is None:
            return []
        table, found = self._table, list[tuple[int, Snapshot]]()
        for row in np.flatnonzero(start < table.given[rows.slot]).tolist():
            slot, tokens = int(rows.slot[row]), int(start[row] + rows.count[row])
            point = SnapshotPoint.CHUNK
            if tokens >= int(table.given[slot]):
                point = SnapshotPoint.PROMPT
            elif tokens == int(self.branch[slot]):
                point = SnapshotPoint.BRANCH
            if (one := self._keep(slot, point, tokens)) is not None:
                found.append((slot, one))
        return [pair for pair in found if pair[1] in self.snapshots]

    def _keep(
        self, slot: int, point: SnapshotPoint, tokens: int, partial: tuple[int, ...] = ()
    ) -> Snapshot | None:
        """Take a snapshot of the first `tokens` positions of a slot, if the policy wants it."""
        table, cache = self._table, self._cache
        left = int(table.given[slot]) - tokens
        if self.snapshots is None or not self.policy.wants(
            point, tokens, int(self.since[slot]), left
        ):
            return None
        self._prefixes.seal_filled(slot)
        if cache.index.sealed[slot] < tokens // cache.block_size:
            return None
        sequence, owner = table.sequence(slot), (slot, int(table.epoch[slot]))
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        self._supersede(slot, point)
        one = self.snapshots.take(sequence, tokens, owner, cache.tables.groups, partial)
        if one is not None:
            self.since[slot], one.point = tokens, point.name
            self._own.setdefault(slot, []).append(one)
            cache.eviction.kept(sequence, one.all_blocks, tokens)
        return one

    def _supersede(self, slot: int, point: SnapshotPoint) -> None:
        """Let a snapshot at this point have the blocks of earlier ones of its sequence, and of one
        that only its sequence has begun with."""
        began, index = self.began.get(slot), self.snapshots
        alone = [began] if began is not None and began.uses == 1 else []
        for one in (*self._own.get(slot, ()), *alone):
            if index is not None and self.policy.supersedes(point, SnapshotPoint[one.point]):
                index.supersede(one)

    # -- failures -----------------------------------------------------------

    def forget(self, slot: int, has_sampled: bool) -> dict[int, bytes]:
        """A row of this slot failed: its state is no good, and if it has not sampled, neither are
        the snapshots that it began with and left. Returns their blocks, and the keys these had."""
        self.distrust([slot])
        if self.snapshots is None or has_sampled:
            return {}
        found = self.snapshots.forget_of((slot, int(self._table.epoch[slot])))
        if (began := self.began.get(slot)) is not None:
            found |= zip(began.all_blocks, began.names(), strict=True)
            self.snapshots.forget(began)
        return found

    def retract(self, owner: Owner | None = None) -> None:
        """Steps in flight failed: forget the states that they were to keep, of all sequences or of
        one."""
        if self.snapshots is not None:
            self.snapshots.retract(owner)

    def read(self, slot: int) -> tuple[int, ...]:
        """The blocks that the state of a resident came from."""
        began = self.began.get(slot)
        return () if began is None else began.all_blocks
