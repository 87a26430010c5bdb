"""Base class of disciplines, which build the rows of a step."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from paceline.core import plugins
from paceline.core.arrays import I32, Index, every
from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.sched.admission.admission import Admission
from paceline.sched.admission.gates import (
    AdapterSlots,
    AdmissionGate,
    FirstRow,
    FreeBlocks,
    Gates,
    HostCopy,
    PolicyRoom,
    SlotsForOthers,
    VacantSlots,
)
from paceline.sched.admission.limits import (
    Budget,
    EncoderBudget,
    Limit,
    Limits,
    LongPrefill,
    ModelLength,
    PolicyShare,
    ReachableImages,
    SnapshotEnds,
    WholePrompts,
)
from paceline.sched.admission.pace import Pace
from paceline.sched.admission.rows import ArrivalRow, ResidentRows
from paceline.sched.admission.step_room import StepRoom
from paceline.sched.components import SchedulerComponents
from paceline.sched.composition import NOTHING, Composition
from paceline.sched.groups.forks import Forks
from paceline.sched.plugin_checks import (
    check_displaced,
    check_listed,
    check_victim,
    is_within,
    wrong_counts,
)
from paceline.sched.policy import Policy
from paceline.sched.speculation import DraftRows


class Discipline(ABC):
    """Builds the rows of one step. It may change only `components`.

    A subclass implements `build` with the methods of this class. `limits` clip the rows of
    residents and arrivals, in this order; `draft_limits` clip the drafts added to those rows.
    `gates` decide whether a sequence joins the step.
    """

    limits: ClassVar[tuple[type[Limit], ...]] = (
        LongPrefill,
        SnapshotEnds,
        Pace,
        WholePrompts,
        ReachableImages,
        PolicyShare,
        EncoderBudget,
    )
    draft_limits: ClassVar[tuple[type[Limit], ...]] = (ModelLength, Budget)
    gates: ClassVar[tuple[type[AdmissionGate], ...]] = (
        HostCopy,
        SlotsForOthers,
        VacantSlots,
        AdapterSlots,
        PolicyRoom,
        FirstRow,
        FreeBlocks,
    )

    def __init__(self, config: Config, components: SchedulerComponents) -> None:
        for name in ("limits", "draft_limits", "gates"):
            check_listed(config.step.discipline, name, getattr(self, name))
        self.config = config.step
        self.state = components.state
        self._departures = components.departures
        self._forks = Forks(components)
        self._limits = Limits(self.limits, config, components.state)
        self._draft_limits = Limits(self.draft_limits, config, components.state)
        gates = Gates(self.gates, config, components.state)
        self.admission = Admission(config, components, self._forks, self._limits, gates)
        self._speculation = components.state.speculation
        self._lookahead = config.speculation.lookahead_slots
        policy = components.state.policy
        # Asking for the head of the queue also refreshes ranks.
        is_asked = type(policy).displaceable is not Policy.displaceable
        self._may_displace = is_asked or policy.refresh
        self.given_way = 0  # residents preempted for others in this step

    @abstractmethod
    def build(self, now: float, admitting: bool) -> Composition:
        """The rows of the next step."""

    def want(self, slot: Index) -> I32:
        """Positions that residents could compute in a step that admits a sequence."""
        return self.state.table.remaining(slot)

    def demand(self, slot: Index) -> I32:
        """Positions that residents compute in a step that admits a sequence, within the limits."""
        return self.clip(slot, self.want(slot))

    def chunk(self, row: ArrivalRow) -> int:
        """Positions of an arrival's first row; 0 if the limits keep it out."""
        return int(self._limits.clip(row)[0])

    def clip(self, slot: Index, want: I32) -> I32:
        """Clip the positions that residents want."""
        rows = ResidentRows(self.state.table, slot, want, self.config.max_num_batched_tokens)
        return self._limits.clip(rows)

    def compose(self, now: float, admitting: bool) -> Composition:
        """The rows of the next step."""
        self.given_way = self._departures.preempt_rested()
        self._fork()
        step = self.build(now, admitting)
        if self.state.table.drafting:
            step = self._draft(step)
        # Positions beyond a row need blocks that only a plan of its own provides.
        return replace(step, quiet=0) if self._lookahead else step

    def rest(self, now: float) -> Composition:
        """A step without rows."""
        return self.admission.closed(NOTHING, "paused", now, lasting=True)

    # -- sequence groups -----------------------------------------------------------

    def _fork(self) -> None:
        """Fork the sequence groups whose prompt has been planned, if there are enough blocks."""
        state = self.state
        for sequence_group in self._forks.due():
            while sequence_group.kept:
                missing = self._forks.need(sequence_group) - state.cache.pool.free
                if missing <= 0:
                    self._forks.fork(sequence_group)
                elif missing <= state.coming_blocks:
                    break  # steps in flight will free enough blocks
                else:
                    self._give_way(missing, sequence_group.leader.slot)

    # -- residents ----------------------------------------------------------

    def serve(self, slot: Index, count: I32, short: I32) -> Composition:
        """Plan `count[i]` positions of each resident and give it `short[i]` new blocks."""
        state = self.state
        grown = state.cache.tables.grow(slot, short)
        if not every(count):
            busy = count > 0
            slot, count = slot[busy], count[busy]
        start = state.table.planned[slot]
        state.table.advance(slot, start + count)
        state.prefixes.seal_rivals()
        return Composition(slot, start, count, np.zeros(len(slot), np.int32), grown)

    def fit(self, share: Callable[[Index], I32], giving_way: bool = True) -> tuple[Index, I32, I32]:
        """Residents, with the positions and new blocks of each. If blocks are short, residents are
        preempted, or, without `giving_way`, get nothing."""
        state = self.state
        while True:
            slot = state.table.order
            count = state.swapping.let_rest(slot, share(slot))
            short = self._short(slot, count)
            missing = int(short.sum()) - state.cache.pool.free
            if missing <= 0:
                return slot, count, short
            wanting = state.cache.tables.unaffordable(short)
            # Rather wait for blocks that steps in flight will free than preempt.
            if missing <= state.coming_blocks or not giving_way:
                return slot, np.where(wanting, 0, count), np.where(wanting, 0, short)
            self._give_way(missing, int(slot[wanting][0]))

    def _give_way(self, missing: int, needy: int) -> None:
        """Preempt the policy's victim because `needy` lacks blocks."""
        state = self.state
        victim = state.policy.victim()
        check_victim(state.policy, "victim", state.table, victim)
        name = "itself" if needy == victim else repr(state.table.name[needy])
        short = f"1 block for {name}" if missing == 1 else f"{missing} blocks, first for {name}"
        self._departures.preempt(victim, cause=f"want of {short}")
        self.given_way += 1

    def _draft(self, step: Composition) -> Composition:
        """Add drafts within the budget and the blocks that are left."""
        state, slot = self.state, step.slot
        table, end = state.table, step.start + step.count
        rows = DraftRows.of(table, step, state.step)
        drafts = self._speculation.drafts(rows)
        if not is_within(drafts, rows.most):
            name = self._speculation.config.speculation
            wanted = ResidentRows(table, slot, rows.most, 0)
            wrong_counts(f"speculation {name!r}", wanted, drafts)
        left = self.config.max_num_batched_tokens - int(step.count.sum())
        drafts = self._draft_limits.clip(ResidentRows(table, slot, drafts, left, end))
        short = self._short(slot, drafts)
        unaffordable = state.cache.tables.unaffordable(short)
        drafts[unaffordable] = short[..., unaffordable] = 0
        step = replace(step, quiet=self._speculation.quiet)
        if not drafts.any():
            return step
        grown = step.grown.followed_by(state.cache.tables.grow(slot, short))
        table.advance(slot, end + drafts)
        return replace(step, count=step.count + drafts, drafts=drafts, grown=grown)

    def _short(self, slot: Index, count: I32) -> I32:
        end = self.state.table.planned[slot] + count
        if self._lookahead:
            end = np.minimum(end + self._lookahead, self.config.max_model_len)
        return self.state.cache.tables.short(slot, end) * (count > 0)

    # -- displacement -------------------------------------------------------

    def displace(self, now: float) -> None:
        """Preempt residents that the head of the queue may displace, if that admits it."""
        state = self.state
        head = state.head(now) if self._may_displace else None
        if head is None or head.swapped:
            return
        candidates = state.policy.displaceable(head, now)
        if candidates:
            check_displaced(state.policy, state.table, candidates)
        for number in range(len(candidates) + 1) if candidates else ():
            if self._fits_without(head, candidates[:number]):
                for slot in candidates[:number]:
                    if state.table.resident[slot]:  # it may have left with its group
                        cause = f"{head.id!r}, which goes before it"
                        self._departures.preempt(slot, cause, may_swap=False)
                return

    def _fits_without(self, head: Sequence, gone: list[int]) -> bool:
        """Would this step admit `head` without the residents in `gone`?"""
        state, admission = self.state, self.admission
        slot = state.table.order[~np.isin(state.table.order, gone)]
        count = self.demand(slot)
        taken, freed = int(count.sum()), state.cache.tables.held_only_by(gone)
        grown = int(self._short(slot, count).sum())
        room = StepRoom(
            vacant=state.table.vacant + len(gone),
            left=self.config.max_num_batched_tokens - taken,
            free=state.cache.pool.free + len(freed) - grown - admission.spared(len(slot)),
            first=not taken,
            used=admission.used_by(slot, None, count),
            gone=tuple(gone),
        )
        return admission.would_fit(head, room, freed, self.chunk)


def load(config: Config, components: SchedulerComponents) -> Discipline:
    """Load a discipline by module name in `disciplines`, or by the dotted path of a class."""
    package = "paceline.sched.disciplines"
    kind: Any = plugins.load("discipline", config.step.discipline, package, Discipline)
    return kind(config, components)
