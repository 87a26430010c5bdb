"""Admission of swapped sequences, then of waiting ones by rank, until a gate stops the queue."""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.plan import Admitted
from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.sched.admission.entrants import (
    Chunk,
    Entrants,
    SwappedEntrant,
    WaitingEntrant,
)
from paceline.sched.admission.gates import Gates
from paceline.sched.admission.limits import Limits
from paceline.sched.admission.rows import ArrivalRow, ResidentRows, Used
from paceline.sched.admission.step_room import Shut, StepRoom
from paceline.sched.components import SchedulerComponents
from paceline.sched.composition import Composition, JoiningRow
from paceline.sched.explain.journal import Gate
from paceline.sched.groups.forks import Forks

MOST_PASSED_OVER = 8  # most sequences passed over in one step; the next one stops the queue
MOST_OVERTAKEN = 64  # admissions past one sequence, after which it stops the queue


@dataclass(slots=True)
class Joining:
    """The sequences that join a step, and the room left in it."""

    room: StepRoom
    chunk: Chunk
    rows: list[JoiningRow] = field(default_factory=list[JoiningRow])
    admitted: list[Admitted] = field(default_factory=list[Admitted])
    passed_over: list[Sequence] = field(default_factory=list[Sequence])
    gates: list[Gate] = field(default_factory=list[Gate])  # of those passed over

    def add(self, slot: int, start: int, count: int) -> None:
        self.rows.append(JoiningRow(slot, start, count))
        self.room.left -= count
        self.room.first = False


class Admission:
    """Admits sequences until a gate stops the queue.

    A gate may also pass a sequence over, which keeps its queue position while those behind it are
    considered. It cannot starve: once `MOST_OVERTAKEN` others were admitted past it, or it has
    waited longer than the policy's patience, it stops the queue until it is admitted. So at most
    `MOST_OVERTAKEN - 1 + max_num_seqs` sequences are admitted past it.
    """

    def __init__(
        self,
        config: Config,
        components: SchedulerComponents,
        forks: Forks,
        limits: Limits,
        gates: Gates,
    ) -> None:
        self._budget = config.step.max_num_batched_tokens
        self._state = components.state
        self._arrivals = components.arrivals
        self._loads = components.loads
        self._forks = forks
        self._limits = limits
        self._gates = gates
        self._entrants = Entrants(config, components.state, forks, limits)
        self._watermark = int(config.step.watermark * config.cache.num_blocks)

    def let_in(
        self, served: Composition, now: float, chunk: Chunk, returning: bool = False
    ) -> Composition:
        """Admit sequences until a gate stops the queue; with `returning`, only swapped ones."""
        joining = Joining(self._room_behind(served), chunk)
        gate: Gate | None = None
        while gate is None and (head := self._head(now)) is not None:
            if returning and not head.swapped:
                gate = self._gate_at(head, Shut("decodes"), now)
                break
            entrant = self._entrant(head, joining)
            shut = self._gates.shut(entrant, joining.room)
            if shut is None:
                shut = self._load_or_join(entrant, joining)
            if shut is None:
                continue
            if self._may_pass_over(head, shut, joining, now):
                self._pass_over(head, shut, joining, now)
            else:
                gate = self._gate_at(head, shut, now)
        if joining.passed_over:
            gate = self._put_back(joining, gate)
        return served.joined(joining.rows, joining.admitted, gate, tuple(joining.gates))

    def _head(self, now: float) -> Sequence | None:
        """The sequence to admit next. If none waits, unpark one that left its slot to others."""
        if self._state.bodies.may_join:
            self._state.bodies.let_one_wait()
        return self._state.head(now)

    def would_fit(self, head: Sequence, room: StepRoom, freed: set[int], chunk: Chunk) -> bool:
        """Would a waiting sequence join a step with this room? It includes `freed` blocks, which
        are held now."""
        entrant = WaitingEntrant(self._entrants, head, room, chunk)
        room.free -= len(freed.intersection(entrant.hit.device))  # the prefix hit holds them
        return self._gates.shut(entrant, room) is None

    def closed(
        self, served: Composition, reason: str, now: float, short: int = 0, lasting: bool = False
    ) -> Composition:
        """Admit no sequence in this step."""
        head = self._state.head(now)
        return served.closed(
            self._gate_at(head, Shut(reason, short, lasting), now) if head else None
        )

    # -- room ---------------------------------------------------------------

    def _room_behind(self, served: Composition) -> StepRoom:
        """The room that the rows of residents leave."""
        state = self._state
        return StepRoom(
            vacant=state.table.vacant,
            left=self._budget - int(served.count.sum()),
            free=state.cache.pool.free - self.spared(len(state.table.order)),
            first=not len(served.slot),
            used=self.used_by(served.slot, served.start, served.count),
        )

    def spared(self, residents: int) -> int:
        """Free blocks kept for residents, if there are any, and for requests that load KV."""
        return (self._watermark if residents else 0) + self._loads.reserved

    def used_by(self, slot: Index, start: I32 | None, count: I32) -> Used:
        """Quantities that rows of residents use up, for limits that count them. Without `start`,
        each row continues at its resident's planned position."""
        used: Used = {}
        if self._limits.counting:
            self._limits.spend(ResidentRows(self._state.table, slot, count, 0, start), used)
        return used

    # -- joining ------------------------------------------------------------

    def _entrant(self, head: Sequence, joining: Joining) -> WaitingEntrant | SwappedEntrant:
        if head.swapped:
            return SwappedEntrant(self._entrants, head, joining.room)
        return WaitingEntrant(self._entrants, head, joining.room, joining.chunk)

    def _load_or_join(
        self, entrant: WaitingEntrant | SwappedEntrant, joining: Joining
    ) -> Shut | None:
        """Admit an entrant, or begin to load its KV. Returns what prevents both, if anything."""
        if self._loads.enabled and isinstance(entrant, WaitingEntrant):
            need = partial(self._entrants.missing_at_last, entrant)
            loads = self._loads.begin(entrant, need, joining.room)
            if isinstance(loads, Shut):
                return loads
            if loads:
                self._count_room(joining.room)
                return None
        self._join(entrant, joining)
        return None

    def _count_room(self, room: StepRoom) -> None:
        """Count vacant slots and free blocks again after an admission."""
        state = self._state
        room.vacant = state.table.vacant
        room.free = state.cache.pool.free - self.spared(len(state.table.order))

    def _join(self, entrant: WaitingEntrant | SwappedEntrant, joining: Joining) -> None:
        """Admit an entrant and its group."""
        state = self._state
        if isinstance(entrant, WaitingEntrant):
            self._enter(entrant, joining)
        else:
            self._bring_back(entrant, joining)
        for one in joining.passed_over:
            state.queue_of(one).overtake(one)
        self._count_room(joining.room)

    def _bring_back(self, entrant: SwappedEntrant, joining: Joining) -> None:
        """Restore a swapped sequence."""
        joining.admitted += self._arrivals.restore(entrant.sequence, entrant.spans)
        for one in entrant.members:
            self._first_row(one, joining)

    def _enter(self, entrant: WaitingEntrant, joining: Joining) -> None:
        """Admit a waiting sequence, and fork its group if it can fork at once."""
        state, head, hit = self._state, entrant.sequence, entrant.hit
        loaded = self._loads.admitted(head, hit)
        joining.admitted.append(self._arrivals.admit(head, hit, entrant.span, loaded))
        self._add(joining, head, hit.tokens, entrant.tokens)
        sequence_group = state.sequence_group(head)
        if sequence_group is not None and self._forks.at_once(sequence_group, hit):
            self._forks.fork(sequence_group)
            state.cache.fences.add_copies(
                state.step, (), [one.serial for one in sequence_group.members]
            )
            for one in sequence_group.members[1:]:
                self._first_row(one, joining)

    def _first_row(self, sequence: Sequence, joining: Joining) -> None:
        """Add the first row of a group member, as long as limits and blocks allow."""
        table, cache, slot, room = self._state.table, self._state.cache, sequence.slot, joining.room
        start = int(table.planned[slot])
        rest = int(table.known[slot]) - start
        row = ArrivalRow(sequence, start, rest, room.left, room.first, room.used)
        mapped = int(cache.tables.room(np.array([slot]))[0]) - start
        self._add(joining, sequence, start, min(joining.chunk(row), mapped))

    def _add(self, joining: Joining, sequence: Sequence, start: int, count: int) -> None:
        """Plan a row of a sequence that has just joined, so that later ones can share the blocks
        that it fills."""
        if not count:
            return
        room, slot = joining.room, sequence.slot
        joining.add(slot, start, count)
        if self._limits.counting:
            row = ArrivalRow(sequence, start, count, count, room.first, room.used)
            self._limits.spend(row, room.used)
        self._state.table.advance(slot, start + count)
        self._state.prefixes.seal_rivals()

    # -- gates --------------------------------------------------------------

    def _may_pass_over(self, head: Sequence, shut: Shut, joining: Joining, now: float) -> bool:
        if not shut.passes_over or len(joining.passed_over) >= MOST_PASSED_OVER:
            return False
        queue = self._state.queue_of(head)
        return queue.overtaken(head) < MOST_OVERTAKEN and queue.impatient(now) is not head

    def _pass_over(self, head: Sequence, shut: Shut, joining: Joining, now: float) -> None:
        """Set a sequence aside until the others have been considered."""
        gate = self._gate_at(head, shut, now)
        joining.gates.append(replace(gate, passed_over=True, lasting=False))
        joining.passed_over.append(head)
        self._state.queue_of(head).set_aside(head)

    def _put_back(self, joining: Joining, gate: Gate | None) -> Gate:
        """Put the sequences that were passed over back into the queue.

        Their gates may open at any time, so the next step cannot be steady.
        """
        for queue in (self._state.swapped, self._state.queue):
            queue.put_back()
        return joining.gates[0] if gate is None else replace(gate, lasting=False)

    def _gate_at(self, head: Sequence, shut: Shut, now: float) -> Gate:
        aged = self._state.queue.impatient(now) is head
        return Gate(shut.reason, head.serial, head.id, shut.short, aged, shut.lasting)
