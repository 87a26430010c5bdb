"""Random schedules with limits and gates of one's own: the promises hold with them as well."""

from collections import Counter
from typing import Any

import numpy as np

from paceline.core.arrays import I32
from paceline.core.plan import Plan
from paceline.core.settings.config import Config
from paceline.sched.admission.admission import MOST_OVERTAKEN
from paceline.sched.admission.entrants import Entrant
from paceline.sched.admission.gates import AdmissionGate
from paceline.sched.admission.limits import Limit, LimitView
from paceline.sched.admission.rows import WantedRows
from paceline.sched.admission.step_room import Shut, StepRoom
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from paceline.sched.state import SchedulerState
from tests.property.schedules import Drive
from tests.seeds import seeds

SEEDS = seeds(15)


class AlignedIfPossible(Limit):
    """A chunk ends at the end of a block, if that leaves any of it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "AlignedIfPossible":
        return cls(config.cache.block_size)

    def clip(self, rows: WantedRows) -> I32:
        end = rows.start + rows.want
        aligned = rows.want - end % self._block_size
        return np.where((end < rows.known) & (aligned > 0), aligned, rows.want)


class OneTenant(AdmissionGate):
    """All residents belong to one tenant; requests of others are passed over."""

    def __init__(self, at: SchedulerState) -> None:
        self._at = at

    @classmethod
    def create(cls, config: Config, at: SchedulerState) -> "OneTenant":
        return cls(at)

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        slots = set(self._at.table.order.tolist()).difference(room.gone)
        here = {self._at.table.sequence(slot).request.tenant for slot in slots}
        if not here - {entrant.sequence.request.tenant}:
            return None
        return Shut("its tenant's turn", passes_over=True)


class UnifiedSeams(Unified):
    """With both."""

    limits = (*Unified.limits, AlignedIfPossible)
    gates = (OneTenant, *Unified.gates)


class PrefillFirstSeams(PrefillFirst):
    """With both."""

    limits = (*PrefillFirst.limits, AlignedIfPossible)
    gates = (OneTenant, *PrefillFirst.gates)


class SeamsDrive(Drive):
    """A random schedule with both."""

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        kind = UnifiedSeams if settings["discipline"] == "unified" else PrefillFirstSeams
        return settings | {"discipline": f"{__name__}.{kind.__name__}"}

    def plan(self) -> None:
        super().plan()
        self.seen["passed over"] += any(
            reason == "for its tenant's turn" for reason in self.scheduler.why().values()
        )
        at = self.scheduler.state
        for queue in (at.queue, at.swapped):
            most = max((queue.overtaken(one) for one in queue), default=0)
            assert most < MOST_OVERTAKEN + self.settings["max_num_seqs"]

    def _assert_kind(self, plan: Plan) -> None:
        assert plan.kind == "mixed" or "PrefillFirst" in self.settings["discipline"]


def test_random_schedules_keep_the_promises_with_limits_and_gates_of_ones_own() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        try:
            seen += SeamsDrive(seed).run().seen
        except AssertionError as error:
            error.add_note(f"schedule with seed {seed}")
            raise
    for trouble in ("passed over", "preempted", "cached", "swap_in"):
        assert seen[trouble], f"no schedule had {trouble}"
