"""Working states of residents: what plans copy, and which of them are kept as snapshots."""

from dataclasses import dataclass, field

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.plan import NO_STATE_MOVES, Blocks, Pairs, Rows, StateMoves
from paceline.core.settings.config import CacheConfig
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit, Owner, Snapshot
from paceline.sched import snapshots
from paceline.sched.admission.prefixes import Prefixes
from paceline.sched.slots import SlotTable
from paceline.sched.snapshots import SnapshotPoint


@dataclass(slots=True)
class NextMoves:
    """States that the next plan copies."""

    left: list[tuple[int, Snapshot]] = field(default_factory=list[tuple[int, Snapshot]])
    moved: list[tuple[int, Blocks]] = field(default_factory=list[tuple[int, Blocks]])  # to the host
    copies: dict[int, int] = field(default_factory=dict[int, int])  # from slots, by slot
    loads: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])  # by slot
    returns: dict[int, Blocks] = field(default_factory=dict[int, Blocks])  # from the host, by slot


class States:
    """Collects the copies of states for the next plan. With models that keep none, it does nothing.

    Behind all plans so far, the state of a slot is that of its planned positions, unless

        _next        brings it, from a snapshot, from another slot or from the host
        _doubtful    a step that was to advance it failed

    branch[s]    position at which a row of s must end, because an earlier sequence had the same
                 tokens up to there; 0: none
    since[s]     tokens of the latest snapshot of s, or of the one that it began with
    before_end   tokens behind the snapshot of a prompt: another engine must compute one to sample

    `began` has the snapshot that a resident began with, and `_own` those that it left, by slot.
    """

    def __init__(
        self, config: CacheConfig, table: SlotTable, cache: KVCache, prefixes: Prefixes
    ) -> None:
        self.enabled = config.state_blocks > 0
        self.snapshots = cache.snapshots
        self.policy = snapshots.load(config)
        self.branch = np.zeros(table.capacity, np.int32)
        self.since = np.zeros(table.capacity, np.int32)
        self.before_end = 0
        self.began: dict[int, Snapshot] = {}
        self._own: dict[int, list[Snapshot]] = {}
        self._next = NextMoves()
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
        self.began[slot] = self._next.loads[slot] = hit.snapshot
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
        self._next.copies[slot] = parent
        self.branch[slot], self.since[slot] = 0, self.since[parent]
        self._doubtful.discard(slot)

    def can_move(self, slot: int) -> bool:
        """Whether the state of a slot can be copied to the host: it is there, or in the slot that
        it is copied from."""
        is_due = slot in self._next.loads or slot in self._next.returns
        return not (is_due or slot in self._doubtful)

    def move_out(self, slot: int, host: Blocks) -> None:
        """A sequence is swapped: the next plan copies its state to blocks of the host."""
        if self.enabled:
            self._next.moved.append((self._next.copies.pop(slot, slot), host))

    def move_in(self, slot: int, host: Blocks) -> None:
        """A swapped sequence has returned to a slot."""
        if self.enabled:
            self._next.returns[slot] = host
            self.branch[slot], self.since[slot] = 0, self._table.planned[slot]
            self._doubtful.discard(slot)

    def leave(self, slot: int, is_moved: bool = False) -> Snapshot | None:
        """A sequence is about to leave its slot: keep its state if only known tokens made it, and
        if it is not moved to the host."""
        if not self.enabled:
            return None
        one: Snapshot | None = None
        is_due = slot in self._next.copies or not self.can_move(slot)
        known, tokens = int(self._table.known[slot]), int(self._table.planned[slot])
        if not (is_due or is_moved) and 0 < tokens <= known:
            partial = self._cache.tables.partial(slot, tokens)
            one = self._keep(slot, SnapshotPoint.TURN, tokens, partial)
            if one is not None:
                self._next.left.append((slot, one))
        coming = self._next
        for kept in (self.began, self._own, coming.loads, coming.copies, coming.returns):
            kept.pop(slot, None)
        self._doubtful.discard(slot)
        return one

    def kept(self, slot: int) -> list[Snapshot]:
        """The snapshot that a resident began with, and those that it left."""
        began = self.began.get(slot)
        return [*(() if began is None else (began,)), *self._own.get(slot, ())]

    def has(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot can be found."""
        return self.snapshots is not None and snapshot in self.snapshots

    def distrust(self, slots: list[int]) -> None:
        """Steps in flight failed that were to advance these states."""
        self._doubtful.update(slots if self.enabled else ())

    # -- plans --------------------------------------------------------------

    def ends(self, slot: Index, start: I32) -> I32:
        """Where rows that begin at these positions must end; 0: anywhere."""
        ends, given = np.zeros(len(slot), np.int32), self._table.given[slot]
        for row in np.flatnonzero(start < given).tolist():
            ends[row] = self.end(int(start[row]), int(self.branch[slot[row]]), int(given[row]))
        return ends

    def end(self, start: int, branch: int, given: int) -> int:
        """Where a row of a sequence with `given` known tokens must end that begins at `start`."""
        end, last = self.policy.end(start, branch), given - self.before_end
        is_next = self.before_end and start < last and not start < end < last
        return last if is_next else end

    def moves(self, rows: Rows, start: I32, step: int) -> StateMoves:
        """The copies of a plan."""
        if not self.enabled:
            return NO_STATE_MOVES
        left = [pair for pair in self._next.left if self.has(pair[1])]
        kept = self._keep_some(rows, start)
        for _, one in (*left, *kept):
            one.step = step
        moves = StateMoves(
            tuple((slot, one.blocks) for slot, one in left),
            tuple(self._next.moved),
            tuple((parent, slot) for slot, parent in self._next.copies.items()),
            tuple((slot, one.blocks) for slot, one in self._next.loads.items()),
            tuple(self._next.returns.items()),
            tuple((slot, one.blocks) for slot, one in kept),
            tuple(
                pair
                for slot, one in kept
                for pair in zip(
                    self._cache.tables.partial(slot, one.tokens), one.partial, strict=True
                )
            ),
        )
        self._next = NextMoves()
        return moves

    def _keep_some(self, rows: Rows, start: I32) -> list[tuple[int, Snapshot]]:
        """Keep states behind the rows of prompts, where the policy wants them."""
        if self.snapshots is None:
            return []
        table, found = self._table, list[tuple[int, Snapshot]]()
        for row in np.flatnonzero(start < table.given[rows.slot]).tolist():
            slot, tokens = int(rows.slot[row]), int(start[row] + rows.count[row])
            point, last = SnapshotPoint.CHUNK, int(table.given[slot]) - self.before_end
            if tokens > last == int(self.since[slot]):
                continue
            if tokens >= last:
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
        own = self._own.get(slot, [])
        for one in (*own, *alone):
            if index is not None and self.policy.supersedes(point, SnapshotPoint[one.point]):
                index.supersede(one)
                if one in own:
                    self._own[slot] = own = [other for other in own if other is not one]

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
