"""Steps that mix prefill and decode: residents first, then waiting sequences."""

import numpy as np

from paceline.core.arrays import I32, Index, every
from paceline.sched.composition import Composition
from paceline.sched.discipline import Discipline
from paceline.sched.slots import Idle


class Unified(Discipline):
    """In every step, the computed positions of each sequence catch up with its known tokens."""

    def build(self, now: float, admitting: bool) -> Composition:
        if admitting and not self.given_way:
            self.displace(now)
        served = self._residents()
        if self.given_way:
            return self.admission.closed(served, "preempted", now, self.given_way)
        if not admitting:
            return self.admission.closed(served, "paused", now, lasting=True)
        return self.admission.let_in(served, now, self.chunk)

    def _residents(self) -> Composition:
        """Share the budget among residents; preempt some if blocks are short."""
        slot, count, short = self.fit(self.demand)
        if not every(count):
            self._note_idle(slot, count)
        return self.serve(slot, count, short)

    def _note_idle(self, slot: Index, count: I32) -> None:
        """Note which residents got nothing, and why."""
        state = self.state
        idle = (count == 0) & (state.table.remaining(slot) > 0)
        granted = self.demand(slot)
        is_spent = int(granted.sum()) >= self.config.max_num_batched_tokens
        left_out = Idle.BUDGET if is_spent else Idle.ROOM
        cause = np.where(granted[idle] > 0, Idle.BLOCKS, left_out)
        for row in np.flatnonzero(state.images.is_ahead[slot[idle]]).tolist():
            if state.images.is_blocked(int(slot[idle][row])):
                cause[row] = Idle.ENCODER
        state.table.idle(slot[idle], state.step, cause)
