"""Residents first, then waiting sequences; prefill and decode mixed."""

from paceline.core.arrays import I32, Index
from paceline.sched.composition import Composition
from paceline.sched.discipline import Discipline
from paceline.sched.limits import within_threshold


class Unified(Discipline):
    """Every step lets what is computed catch up with what is known, whoever it is."""

    def build(self, now: float, admitting: bool) -> Composition:
        if admitting and not self._given_way:
            self._displace(now)
        served = self._residents()
        if self._given_way:
            return self._admission.closed(served, "preempted", now, self._given_way)
        if not admitting:
            return self._admission.closed(served, "paused", now)
        return self._admission.let_in(served, now, self.chunk)

    def _residents(self) -> Composition:
        """Share the budget among residents, some of whom give way if blocks are short."""
        at = self._at
        slot, count, short = self._fit(self.demand)
        if not count.all():
            at.table.idle(slot[(count == 0) & (at.table.remaining(slot) > 0)], at.step)
        return self._serve(slot, count, short)

    def demand(self, slot: Index) -> I32:
        """Positions for each resident within all limits."""
        config = self._config
        want = self._at.table.remaining(slot)
        want = within_threshold(want, config.long_prefill_token_threshold)
        return self._at.policy.share(slot, want, config.max_num_batched_tokens)

    def chunk(self, rest: int, left: int, first: bool) -> int:
        """Positions of an arrival's first row; 0 if the budget does not let it in."""
        threshold = self._config.long_prefill_token_threshold
        want = min(rest, threshold) if threshold else rest
        if not self._config.enable_chunked_prefill and want > left:
            return 0
        return min(want, left)
