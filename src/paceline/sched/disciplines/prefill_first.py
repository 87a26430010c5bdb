"""Steps that are all prefill or all decode; prefill goes first."""

from dataclasses import replace

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.sched.admission.limits import (
    EncoderBudget,
    LongPrefill,
    PolicyShare,
    ReachableImages,
    SnapshotEnds,
    WholePrompts,
    WholeRows,
)
from paceline.sched.admission.rows import ArrivalRow
from paceline.sched.composition import Composition
from paceline.sched.discipline import Discipline


class PrefillFirst(Discipline):
    """Admits whole prompts whenever it can; otherwise all residents decode one token.

    With chunked prefill, the first prompt of a step is cut if it does not fit, and continues in the
    next one. While a sequence is swapped, no waiting one is admitted; swapped sequences return in
    decode steps. Decodes wait for `max_wait` seconds at most.
    """

    limits = (
        LongPrefill,
        SnapshotEnds,
        WholePrompts,
        ReachableImages,
        WholeRows,
        PolicyShare,
        EncoderBudget,
    )

    _held_since: float | None = None  # since when decodes wait

    def build(self, now: float, admitting: bool) -> Composition:
        if self._overdue(now):  # the step will admit nothing
            return self._decode(now, admitting, reason="decodes")
        if admitting and not self.given_way:
            self.displace(now)
        step = self._prefill(now, admitting)
        if not len(step.slot):
            return self._decode(now, admitting, gated=step)
        if self._held_since is None and self._one_left(self.state.table.order).any():
            self._held_since = now
        return replace(step, kind="prefill")

    def _overdue(self, now: float) -> bool:
        """Have decodes waited for `max_wait` seconds?"""
        if not self._one_left(self.state.table.order).any():
            self._held_since = None
        held = self._held_since
        return held is not None and now - held >= self.config.max_wait

    # -- prefill ------------------------------------------------------------

    def _prefill(self, now: float, admitting: bool) -> Composition:
        """Residents with more than one position to compute, then waiting sequences."""
        served = self.serve(*self.fit(self.demand))
        if self.given_way:
            return self.admission.closed(served, "preempted", now, self.given_way)
        if not admitting:
            return self.admission.closed(served, "paused", now, lasting=True)
        if len(self.state.swapped):  # only decode steps let them return
            return self.admission.closed(served, "prefill", now)
        return self.admission.let_in(served, now, self.chunk)

    def want(self, slot: Index) -> I32:
        """The remaining positions of residents that have more than one left."""
        want = self.state.table.remaining(slot)
        return np.where(want > 1, want, 0)

    # -- decode -------------------------------------------------------------

    def _decode(
        self, now: float, admitting: bool, gated: Composition | None = None, reason: str = ""
    ) -> Composition:
        """One position for each resident that has just one left; then swapped sequences return."""
        state = self.state
        self._held_since = None
        step = replace(self.serve(*self.fit(self._decodes)), kind="decode")
        if self.given_way:
            return self.admission.closed(step, "preempted", now, self.given_way)
        if not admitting:
            return self.admission.closed(step, "paused", now, lasting=True)
        if len(state.swapped):
            step = self.admission.let_in(step, now, self._last, returning=True)
            return step if len(step.slot) else self._catch_up(step)
        if gated is not None:
            return replace(step, gate=gated.gate)
        return self.admission.closed(step, reason, now)

    def _catch_up(self, returned: Composition) -> Composition:
        """A step without decodes, for residents that returned with more than one position left."""
        served = self.serve(*self.fit(self.demand, giving_way=False))
        gate = returned.gate
        if gate is not None and gate.reason == "decodes" and len(served.slot):
            gate = replace(gate, reason="prefill")
        return replace(served, kind="prefill", admitted=returned.admitted, gate=gate)

    def _one_left(self, slot: Index) -> I32:
        """One position for each resident that has just one left."""
        want = self.state.table.remaining(slot)
        return np.where(want == 1, want, 0)

    def _decodes(self, slot: Index) -> I32:
        """One position for each resident that has just one left, within the limits."""
        return self.clip(slot, self._one_left(slot))

    def _last(self, row: ArrivalRow) -> int:
        """The row of a sequence that returns: its last position, if it has no other left."""
        return self.chunk(row) if row.rest == 1 else 0
