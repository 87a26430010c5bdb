"""A runner that computes nothing, and says how long each step takes."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from paceline.core.arrays import I32
from paceline.core.capabilities import Capabilities
from paceline.core.plan import Plan, Rows, StepResult
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.drafting import DraftedSequences
from paceline.simulator.device.profile import Profile
from paceline.testing.runner import VirtualClock

OUTPUT_TOKEN = 0  # what requests sample whose outputs are not known


@dataclass(frozen=True, slots=True, eq=False)
class TimedStep:
    """A step on the device."""

    rows: Rows
    batch: BatchSummary
    position: I32  # [rows] of the first token that each row samples
    done_at: float  # seconds on the virtual clock
    result: StepResult


class TimedRunner:
    """The engine's `Runner` port on a virtual clock, with the times of a profile.

    The host plans, the device runs one step after another, the host commits. `outputs` has the
    tokens that a request samples, by id; any other samples `OUTPUT_TOKEN`. `drafted` says which
    drafts are right; without it there may be none.
    """

    capabilities = Capabilities()

    def __init__(
        self,
        profile: Profile,
        clock: VirtualClock,
        outputs: Mapping[str, I32] | None = None,
        drafted: DraftedSequences | None = None,
    ) -> None:
        self._profile, self._clock = profile, clock
        self._outputs = outputs or {}
        self._drafted = drafted
        self._scripts: dict[int, I32] = {}  # tokens by position, by slot
        self._running: deque[TimedStep] = deque()
        self._latest: TimedStep | None = None
        self._free_at = 0.0  # when the device has run all of them

    # -- the port of the engine ---------------------------------------------

    def launch(self, plan: Plan) -> None:
        if self._outputs:
            self._follow(plan)
        right = None
        if self._drafted is not None:
            plan, right = self._drafted.verified(plan)
        if plan.empty:
            return
        batch, result = self._step(plan, right)
        position = plan.start + plan.rows.count - plan.rows.drafts
        self._clock.advance_to(self._clock() + self._profile.plan_s(batch))
        self._free_at = max(self._free_at, self._clock()) + self._device_s(batch)
        self._latest = TimedStep(plan.rows, batch, position, self._free_at, result)
        self._running.append(self._latest)

    def _device_s(self, batch: BatchSummary) -> float:
        found = self._profile.device_s(batch)
        return found if self._drafted is None else found + self._drafted.proposing_s(batch)

    def _step(self, plan: Plan, right: I32 | None) -> tuple[BatchSummary, StepResult]:
        """What the step is made of, and what it samples if so many drafts are right."""
        latest = self._latest
        if latest is not None and latest.rows is plan.rows:  # a steady decode repeats its rows
            return latest.batch.later(1), latest.result
        return BatchSummary.of(plan), sampled(plan.rows, right)

    def _follow(self, plan: Plan) -> None:
        """Find the tokens of sequences that take a slot."""
        for slot in plan.released:
            self._scripts.pop(slot, None)
        for new in plan.admitted:
            if (outputs := self._outputs.get(new.request.id)) is not None:
                self._scripts[new.slot] = np.concatenate([new.request.prompt, outputs])

    def wait(self) -> StepResult:
        oldest = self._running.popleft()
        self._clock.advance_to(oldest.done_at)
        self._clock.advance_to(self._clock() + self._profile.commit_s(oldest.batch))
        if not self._scripts:
            return oldest.result
        return replace(oldest.result, ids=self._ids(oldest))

    def _ids(self, step: TimedStep) -> I32:  # [rows, 1 + most drafts]
        """The tokens that each row samples from its position on."""
        found = np.full_like(step.result.ids, OUTPUT_TOKEN)
        for row, slot in enumerate(step.rows.slot.tolist()):
            if (script := self._scripts.get(slot)) is not None:
                first = int(step.position[row])
                new = script[first : first + found.shape[1]]
                found[row, : len(new)] = new
        return found

    def is_lost(self) -> bool:
        """A simulated device survives every error."""
        return False

    def close(self) -> None:
        """There is no device to close."""


def sampled(rows: Rows, right: I32 | None = None) -> StepResult:
    """One token of each row that samples, and its drafts that are right."""
    ids = np.full((len(rows), 1 + int(rows.drafts.max(initial=0))), OUTPUT_TOKEN, np.int32)
    count = rows.samples.astype(np.int32)
    return StepResult(ids, count if right is None else count + right)
