"""A scheduler for simulations, which can make many equal steps at once."""

from collections import deque
from dataclasses import dataclass
from math import inf

from paceline.core.arrays import F64, I32, NO_I32
from paceline.core.config import Config
from paceline.sched.policy import Policy
from paceline.sched.scheduler import Scheduler
from paceline.sched.steady import Steady


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How busy a scheduler is."""

    running: int  # sequences
    waiting: int  # requests
    used_blocks: int


class LeapingScheduler(Scheduler):
    """A scheduler that can plan and commit many steps in one call if they repeat the latest one.

    After a leap its state is what single calls of `plan` and `commit` would have left: tokens,
    counters, blocks in the same order, the charges of a policy, the journal.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        state, policy = self.state, self.state.policy
        kind = type(policy)
        self._is_plain = state.cache.events is None and not state.cache.tables.slides
        self._charges = kind.sampled is not Policy.sampled
        # While requests wait, the next one must stay the same, whatever the time.
        self._order_stays = (
            kind.flow_rank is Policy.flow_rank
            and not policy.refresh
            and policy.patience_s == inf
            and not self._timeouts
        )

    def steps_ahead(self, most: int) -> int:
        """How many of the next `most` steps repeat the latest one, if no request arrives and none
        is aborted. All steps in flight must be repetitions too."""
        steady = self._planner.steady
        if steady is None or not self._is_plain or not self._may_repeat():
            return 0
        return steady.steps_ahead(most)

    def _may_repeat(self) -> bool:
        state = self.state
        if self._planner.paused or self._unreported or state.link.connector is not None:
            return False
        if next(iter(state.cache.fences), None) is not None:
            return False
        if self.components.stops.suspects(NO_I32) is not None:
            return False
        return not state.waiting or (self._order_stays and self._gate_is_shut())

    def _gate_is_shut(self) -> bool:
        gate, head = self.gate, self.state.head(self.state.now)
        return gate is not None and gate.lasting and head is not None and head.serial == gate.serial

    @property
    def occupancy(self) -> Occupancy:
        state, pool = self.state, self.state.cache.pool
        return Occupancy(len(state.table.order), state.waiting, pool.size - pool.free)

    @property
    def steady(self) -> Steady | None:
        """The rows that may be planned again."""
        return self._planner.steady

    def leap(self, ids: I32, planned: F64, committed: F64) -> None:
        """Plan and commit a step for each column of `ids` [rows, steps], at these times.

        There are at least as many steps as in flight, and at most `steps_ahead`.
        """
        steady, state, steps = self._planner.steady, self.state, len(planned)
        assert steady is not None
        assert len(self._flight) <= steps, f"{steps} steps do not replace those in flight"
        steady.skip(ids)
        state.step += steps
        state.stats.steps += steps
        state.stats.planned += steps * steady.size
        state.stats.sampled += steps * steady.size
        if state.waiting:
            for time in (planned[0], planned[-1]):
                state.journal.blocked(self._planner.gate, float(time))
        if self._charges:
            for _ in range(steps):
                state.policy.sampled(steady.rows.slot, steady.rows.count)
        self._flight = deque(range(state.step + 1 - len(self._flight), state.step + 1))
        state.cache.confirm(state.step - len(self._flight))
        self._tick(float(committed[-1]))
