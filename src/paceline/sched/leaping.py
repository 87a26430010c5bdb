"""A scheduler for simulations, which can make many steps at once."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from paceline.core.arrays import F64, I32, NO_I32, Index
from paceline.core.config import Config
from paceline.core.errors import RequestError
from paceline.core.events import Happened
from paceline.core.plan import Ended, Plan, Rows
from paceline.core.request import Finish, Request, Sequence
from paceline.kv.tables import BlockTables
from paceline.sched.changes import Changes
from paceline.sched.composition import FOREVER
from paceline.sched.course import Course, Joined
from paceline.sched.explain.journal import note
from paceline.sched.joining import DirectJoin
from paceline.sched.policy import Policy
from paceline.sched.scheduler import Scheduler
from paceline.sched.steady import Steady

REFRESHED_STEPS = 32  # of a leap, in which ranks are asked for again where a policy wants that


class Occupancy(NamedTuple):
    """How busy a scheduler is."""

    running: int  # sequences
    waiting: int  # requests
    used_blocks: int


@dataclass(slots=True, eq=False)
class Leapt:
    """What the latest leap left, which no single step has followed: its last rows, and whether a
    plan would repeat them."""

    goes_on: bool
    rows: Rows | None = None


class Watch(Protocol):
    """Sees what happens in the turns of a leap."""

    @property
    def turns(self) -> Collection[int]:
        """Those that are observed, besides others."""
        ...

    def ended(self, turn: int, end: Ended) -> None:
        """A request ended in a turn."""
        ...

    def observe(self, turn: int, found: Occupancy) -> None:
        """After a turn, so much was occupied. Those between two of them had no more."""
        ...


class LeapingScheduler(Scheduler):
    """A scheduler that can plan and commit many steps in one call if nothing is decided in them:
    residents decode, and end when they are complete.

    After a leap its state is what single calls of `plan` and `commit` would have left: tokens,
    counters, blocks in the same order, the charges of a policy, the journal.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        state, policy = self.state, self.state.policy
        kind = type(policy)
        self._is_plain = state.cache.events is None and type(state.cache.tables) is BlockTables
        self._charges = kind.sampled is not Policy.sampled
        # While requests wait, the next one must stay the same, whatever the time.
        self._order_stays = (
            kind.flow_rank is Policy.flow_rank
            and not policy.refresh
            and policy.patience_s == inf
            and not self._timeouts
        )
        # Ours give each decode its position, so that steps are known which no plan has begun.
        self._is_ours = (
            config.step.discipline == "unified"
            and kind.__module__.startswith("paceline.")
            and config.step.max_num_seqs <= config.step.max_num_batched_tokens
            and not config.speculation.lookahead_slots
        )
        self._direct = DirectJoin(config, self.components)
        self._leapt: Leapt | None = None

    @property
    def occupancy(self) -> Occupancy:
        state, pool = self.state, self.state.cache.pool
        return Occupancy(len(state.table.order), state.waiting, pool.size - pool.free)

    # -- looking ahead ------------------------------------------------------

    def course(
        self,
        in_flight: list[Rows],
        depth: int,
        most: int,
        due: list[Request],
        now: float,
    ) -> Course | None:
        """What the next turns do, `most` at most, if no other request arrives and none is aborted;
        None if that is not known. `in_flight` are the rows of the steps in flight.

        If there is a course, the requests that are `due` have joined its first step: `leap` must
        follow.
        """
        table, behind = self.state.table, depth - 1
        slot, filling = table.order, behind - len(in_flight)
        if len(in_flight) != len(self._flight) or not (len(slot) or due):
            return None
        if (filling and (len(slot) or behind > 1)) or not self._may_leap():
            return None
        start = table.planned[slot]
        left = table.ceiling[slot] - start
        if not self._is_decoding(slot, start, in_flight):
            return None
        if due:
            self._tick(now)
            return self._joined(start, left, due, most, behind)
        most = min(most, self._turns_known(left, behind))
        if most < max(behind, 1):
            return None
        made = self._along(start, left, most, behind)
        return made if made.most >= max(behind, 1) else None

    def _is_decoding(self, slot: Index, start: I32, in_flight: list[Rows]) -> bool:
        """Has each resident had its prompt, and are these its rows in the latest steps? While
        drafts are in flight, it is not known where their rows end."""
        if not len(slot):
            return True
        if any(rows.drafts.any() for rows in in_flight):
            return False
        table = self.state.table
        sampling = start + 1 - table.known[slot]  # steps in flight in which each has a row
        if (start < table.given[slot]).any() or sampling.min() < min(len(in_flight), 1):
            return False
        return all(
            np.array_equal(rows.slot, slot[sampling >= behind])
            for behind, rows in zip(range(len(in_flight), 0, -1), in_flight, strict=True)
        )

    def _along(
        self, start: I32, left: I32, most: int, behind: int, joined: tuple[Joined, ...] = ()
    ) -> Course:
        """The course of residents, `most` turns or as far as there are blocks."""
        state, slot = self.state, self.state.table.order
        edges = state.cache.tables.edges(slot, start, start + np.minimum(left, most))
        free = state.cache.pool.free
        if edges is not None and len(edges.steps) > free:
            most = edges.steps[free]
        return Course(
            state.step - bool(joined),
            slot,
            state.table.handle[slot],
            start,
            state.table.known[slot],
            left,
            behind,
            most,
            edges,
            len(state.changes.finished),
            state.changes.released,
            self._repeats,
            joined,
        )

    def _joined(
        self, start: I32, left: I32, due: list[Request], most: int, behind: int
    ) -> Course | None:
        """The course of residents and of those that join their next step."""
        table, direct = self.state.table, self._direct
        mine = left > 0
        slot = table.order[mine]
        if behind > 1 or not self._leaps_freely or not direct.fits(len(slot), due):
            return None
        try:
            limits = [self._admissible(request) for request in due]
        except RequestError:
            return None
        arrived: list[Sequence] = []
        for request, limit in zip(due, limits, strict=True):
            arrival = self.state.now if request.arrival is None else request.arrival
            arrived.append(Sequence(request, self._serials, limit, arrival, request.known(0)))
            self._serials += 1
        joined = direct.join(slot, start[mine], arrived)
        known = np.array([len(one.tokens) for one in arrived], np.int32)
        start = np.concatenate([start, known - 1])
        left = table.ceiling[table.order] - start
        # Rivals get keys in each step that is planned.
        most = 1 if self.state.cache.index.rivals else min(most, int(left.max()) + behind)
        return self._along(start, left, most, behind, joined)

    def _may_leap(self) -> bool:
        state, changes = self.state, self.state.changes
        if not self._is_plain or self._planner.paused or self._unreported or state.bodies.parked:
            return False
        if state.link.connector is not None or next(iter(state.cache.fences), None) is not None:
            return False
        if state.table.needs_host or self.components.stops.suspects(NO_I32) is not None:
            return False
        return not (changes.admitted or changes.preempted or changes.copies or changes.swap_in)

    def _turns_known(self, left: I32, behind: int) -> int:
        """The number of turns that are known."""
        state, steady = self.state, self._planner.steady
        if self._leaps_freely:
            return int(left.max()) + behind
        if steady is None:
            return 0
        if state.waiting and not (self._order_stays and self._gate_is_shut()):
            return 0
        return min(steady.steps_left, int(left.min()) - (behind == 0))  # no row may end

    @property
    def _leaps_freely(self) -> bool:
        """Whether no request could take the place of one that ends."""
        state = self.state
        is_shared = state.cache.index.rivals or len(state.families) or state.table.drafting
        return self._is_ours and not state.waiting and not is_shared

    @property
    def _repeats(self) -> bool:
        """Would a plan now repeat the rows of the latest one?"""
        if self._leapt is not None:
            return self._leapt.goes_on
        steady = self._planner.steady
        return steady is not None and steady.steps_left > 0

    def settle(self) -> None:
        """After leaps, and before any other call: let the next plan repeat rows where single steps
        would."""
        leapt, self._leapt = self._leapt, None
        if leapt is not None and leapt.goes_on and leapt.rows is not None:
            table, cache = self.state.table, self.state.cache
            self._planner.steady = Steady(leapt.rows, "mixed", table, cache, FOREVER)

    def _gate_is_shut(self) -> bool:
        gate, head = self.gate, self.state.head(self.state.now)
        return gate is not None and gate.lasting and head is not None and head.serial == gate.serial

    # -- leaping ------------------------------------------------------------

    def leap(self, course: Course, begun: F64, ended: F64, ids: I32 | int, watch: Watch) -> None:
        """Make a turn at each of these times, at least as many as steps are in flight. `ids` are
        the new tokens, of one row after the other."""
        state, turns = self.state, len(begun)
        known, planned = course.known_after(turns), np.minimum(course.left, turns)
        state.table.run_ahead(course.slot, course.start + planned, known, ids)
        state.stats.steps += turns
        state.stats.planned += int(planned.sum()) + sum(one.positions - 1 for one in course.joined)
        state.stats.sampled += int((known - course.known).sum())
        self._note_first(course, ended)
        if state.waiting:
            for time in (begun[0], begun[-1]):
                state.journal.blocked(self._planner.gate, float(time))
        if state.policy.refresh:
            for _ in range(min(turns, REFRESHED_STEPS)):
                state.queue.refresh()
                state.swapped.refresh()
        self._make(course, ended, watch)
        state.step = course.base + turns
        self._flight = deque(course.base + 1 + step for step in course.in_flight(turns))
        state.cache.confirm(course.base + turns - course.behind)
        self._tick(float(ended[-1]))

    def _make(self, course: Course, ended: F64, watch: Watch) -> None:
        """Take blocks, charge tenants and end requests, turn by turn."""
        state, turns = self.state, len(ended)
        is_free, taken, charged, last = bool(course.joined) or self._leaps_freely, 0, 0, -1
        endings = dict(course.endings(turns))
        for turn in sorted({*endings, *watch.turns}):
            before, taken = taken, self._take(course, taken, turn + 1)
            if turn in endings:
                if turn:
                    watch.observe(turn - 1, self._occupied_before(course, turn, before, taken))
                charged = self._charge(course, charged, turn + 1)
                state.step, last = course.base + turn + 1, turn
                self._tick(float(ended[turn]))
                self._end(course.slot[endings[turn]].tolist(), turn, watch)
            if turn in watch.turns:
                watch.observe(turn, self.occupancy)
        self._take(course, taken, turns)
        self._charge(course, charged, turns)
        watch.observe(turns - 1, self.occupancy)
        if last < turns - 1:
            state.changes = Changes()
        if is_free:
            self._planner.steady = self._planner.gate = None
            self._leapt = Leapt(not course.is_built(turns))
        elif self._planner.steady is not None:
            self._planner.steady.skipped(turns)

    def _occupied_before(self, course: Course, turn: int, first: int, end: int) -> Occupancy:
        """The occupancy after the turn before this one, whose blocks are taken with others: from
        the edge `first` to before `end`."""
        now = self.occupancy
        if course.edges is None or first == end:
            return now
        return now._replace(used_blocks=now.used_blocks - (end - course.edges.before(turn)))

    def _take(self, course: Course, taken: int, steps: int) -> int:
        """Append the blocks of the first steps, behind those that are taken. Returns all."""
        if course.edges is None:
            return 0
        end = course.edges.before(steps)
        if end > taken:
            self.state.cache.tables.grow_along(course.edges, taken, end)
        return end

    def _charge(self, course: Course, first: int, end: int) -> int:
        """Let the policy charge the tokens of some turns."""
        if self._charges:
            begins, ends = course.first_turn, course.last_turn
            for turn in range(first, end):
                slot = course.slot[(begins <= turn) & (turn <= ends)]
                if len(slot):
                    self.state.policy.sampled(slot, np.ones(len(slot), np.int32))
        return end

    def _end(self, slots: list[int], turn: int, watch: Watch) -> None:
        """End the requests of these slots in a turn."""
        state, finish = self.state, self.components.departures.finish
        state.changes = Changes()  # the plan of this turn had the earlier ones
        for slot in slots:
            for one in finish(state.table.sequence(slot), Finish.LENGTH):
                watch.ended(turn, one)

    def _note_first(self, course: Course, ended: F64) -> None:
        """Note the first tokens of requests."""
        state, slot = self.state, course.slot
        for row in np.flatnonzero(course.known == state.table.prompt[slot]).tolist():
            turn, sequence = int(course.first_turn[row]), state.table.sequence(int(slot[row]))
            is_new = all(one.happened is not Happened.FIRST_TOKEN for one in sequence.life)
            if is_new and turn < len(ended):
                step = course.base + 1 + turn - course.behind
                note(sequence, Happened.FIRST_TOKEN, float(ended[turn]), step)

    def latest(self, course: Course, turns: int) -> list[Plan]:
        """After a leap of so many turns: the plans in flight, or the latest one if none is in
        flight between two turns."""
        table, steady = self.state.table, self._planner.steady
        rows = None if steady is None else steady.rows
        steps = course.in_flight(turns) if course.behind else range(turns - 1, turns)
        made: list[Plan] = []
        for step in steps:
            mine = course.left > step
            slot, start = course.slot[mine], course.start[mine] + step
            if rows is None or (steady is None and course.is_built(step)):
                count = np.ones(len(slot), np.int32)
                if step == 0 and course.joined:
                    count[-len(course.joined) :] = [one.positions for one in course.joined]
                    start += 1 - count
                end = table.known[slot]  # where each row ends that samples
                rows = table.rows(slot, end - count, count, np.zeros_like(count))
            made.append(Plan(course.base + 1 + step, rows, start))
        if self._leapt is not None:
            self._leapt.rows = rows
        return made
