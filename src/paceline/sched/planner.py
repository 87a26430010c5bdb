"""Turn the state into the plan of the next step."""

from typing import Literal

from paceline.core.plan import Plan, Rows
from paceline.core.settings.config import Config
from paceline.sched import discipline
from paceline.sched.components import SchedulerComponents
from paceline.sched.composition import Composition
from paceline.sched.explain.journal import Gate
from paceline.sched.lifecycle.timeouts import QueueLimits
from paceline.sched.plugin_checks import check_composition, over_budget
from paceline.sched.state import Changes
from paceline.sched.steady import Steady

Pause = Literal["", "new", "all"]


class Planner:
    """Repeats the rows of the previous step if they are steady and no request could join them;
    otherwise has the discipline build a step.

    steady   rows that may be repeated; None: the discipline builds the next step
    gate     what stopped admission in the latest step; None: nothing, or that has changed
    paused   "new": admit no request; "all": plan no rows
    """

    def __init__(
        self, config: Config, components: SchedulerComponents, limits: QueueLimits
    ) -> None:
        self.steady: Steady | None = None
        self.gate: Gate | None = None
        self.paused: Pause = ""
        self._state = components.state
        self._limits = limits
        self._bodies = components.state.bodies
        self._step = config.step
        self._discipline = discipline.load(config, components)
        # Tests check the steps of our own disciplines with `SchedulerState.check`.
        self._is_ours = type(self._discipline).__module__.startswith("paceline.")

    def plan(self) -> Plan:
        """The plan of step `state.step`."""
        plan = self._repeat() or self._build()
        self._state.times.planned(plan, self._state.now)
        return plan

    def _repeat(self) -> Plan | None:
        """Plan the same rows again; None if they have changed or a request could join them."""
        state, steady = self._state, self.steady
        if steady is None or self.paused == "all":
            return None
        waiting = state.waiting
        if self._bodies.may_join and not self.paused:
            return None
        if waiting and not self._gate_stays_shut():
            return None
        plan = steady.plan(state.step)
        if plan is not None:
            state.stats.planned += steady.size
            if waiting:
                state.journal.blocked(self.gate, state.now)
        return plan

    def _gate_stays_shut(self) -> bool:
        """Would the same gate stop admission? Steady steps free no slot and no block."""
        state, gate = self._state, self.gate
        if gate is None or not gate.lasting:
            return False
        head = state.head(state.now)
        return head is not None and head.serial == gate.serial

    def _build(self) -> Plan:
        state = self._state
        if self.paused == "all":
            step = self._discipline.rest(state.now)
        else:
            step = self._discipline.compose(state.now, admitting=not self.paused)
        if not self._is_ours:
            check_composition(self._step.discipline, step, state.table)
        positions = int(step.count.sum())
        if positions > self._step.max_num_batched_tokens:
            over_budget(self._step, positions)
        rows = state.table.rows(step.slot, step.start, step.count, step.drafts)
        state.stats.planned += positions
        state.journal.blocked(step.gate, state.now, step.passed_over)
        self.gate = step.gate
        self.steady = Steady.of(step, rows, state.table, state.cache)
        return self._with_changes(step, rows)

    def _with_changes(self, step: Composition, rows: Rows) -> Plan:
        """The plan, with all changes since the previous one."""
        state, changes = self._state, self._state.changes
        state.changes = Changes()
        admitted = (*changes.admitted, *step.admitted)
        for new in admitted:
            self._limits.left(state.table.name[new.slot])
        for slot, copies in changes.copies:
            if slot >= 0:
                serial = int(state.table.serial[slot])
                state.cache.fences.add_copies(state.step, copies, [serial])
        copies = tuple(pair for _, pairs in changes.copies for pair in pairs)
        state.stats.copied_blocks += len(copies)
        encode, embedded = state.images.encode(step, state.step)
        return Plan(
            state.step,
            rows,
            step.start,
            step.grown,
            admitted,
            tuple(changes.released),
            tuple(changes.preempted),
            tuple(changes.finished),
            copies,
            changes.swap_out,
            changes.swap_in,
            tuple(changes.chosen.items()),
            step.kind,
            encode,
            embedded,
            state.states.moves(rows, step.start, state.step),
        )
