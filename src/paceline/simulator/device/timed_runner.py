"""A runner that computes nothing: how long each step takes, and which drafts are right."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from zlib import crc32

import numpy as np

from paceline.core.arrays import I32
from paceline.core.capabilities import MEASURED_ROWS, Capabilities, Points, StepTimes
from paceline.core.errors import ConfigError
from paceline.core.plan import Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.core.settings.checks import check_types, not_negative, require
from paceline.core.settings.config import Config
from paceline.engine.loop.turn_times import CONTEXT
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import Profile
from paceline.testing.runner import VirtualClock

LEAST_S = 1e-9  # of a profile that has no time for something
OUTPUT_TOKEN = 0  # what requests sample whose outputs are not known


@dataclass(frozen=True, slots=True)
class Drafting:
    """How good the drafts of a server are, and what they take."""

    acceptance: float  # chance that a draft is right if those before it in its row are
    draft_s: float = 0.0  # of the device, for the next draft of all rows together
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "draft_s", "seed")
        require(isfinite(self.draft_s), f"draft_s is {self.draft_s}; it must be finite")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ConfigError(f"acceptance is {self.acceptance}; it must lie in [0, 1]")


class DraftedSequences:
    """Where sequences stand on the device, and which of their drafts are right.

    A draft is right or wrong by its request and its place in the output alone. So the batch, the
    number of drafts and a preemption change nothing about it, and a run repeats.
    """

    def __init__(self, drafting: Drafting, slots: int) -> None:
        self._drafting = drafting
        self._stands: I32 = np.zeros(slots, np.int32)  # positions computed, by slot
        self._prompt: I32 = np.zeros(slots, np.int32)  # tokens, by slot
        self._runs: dict[int, I32] = {}  # right drafts from each place of the output on, by slot

    def verified(self, plan: Plan) -> tuple[Plan, I32]:
        """The plan with the positions where its rows really begin, which is before those that it
        has while drafts are in flight; and how many drafts of each row are right."""
        for slot in plan.released:
            self._runs.pop(slot, None)
        for new in plan.admitted:
            self._stands[new.slot] = new.computed
            self._prompt[new.slot] = len(new.request.prompt)
            self._runs[new.slot] = self._runs_of(new.request)
        rows, begin = plan.rows, self._stands[plan.rows.slot]
        end = begin + (rows.count - rows.drafts)  # where the first draft is
        right = np.zeros_like(rows.drafts)
        places = (end - self._prompt[rows.slot]).tolist()
        for row in np.flatnonzero(rows.drafts).tolist():
            right[row] = self._runs[int(rows.slot[row])][places[row]]
        right = np.minimum(right, rows.drafts)
        self._stands[rows.slot] = end + right
        return replace(plan, start=begin), right

    def proposing_s(self, batch: BatchSummary) -> float:
        """Seconds that the device takes to propose the drafts of a step."""
        return self._drafting.draft_s * batch.drafts

    def _runs_of(self, request: Request) -> I32:
        """From each place on, the drafts of a request up to the first wrong one."""
        random = np.random.default_rng([self._drafting.seed, crc32(request.id.encode())])
        places = np.arange((request.max_tokens or 0) + 1, dtype=np.int32)
        is_wrong = random.random(len(places)) >= self._drafting.acceptance
        is_wrong[-1] = True  # no output is longer
        wrong = np.where(is_wrong, places, places[-1])
        found: I32 = np.minimum.accumulate(wrong[::-1])[::-1] - places
        return found


def step_times(profile: Profile, config: Config, depth: int, drafting: Drafting) -> StepTimes:
    """What an engine would measure when it starts; see `TurnTimer`."""
    most, step = config.speculation.num_speculative_tokens, config.step
    context = max(min(CONTEXT, step.max_model_len // 2), 1)

    def points(kinds: Sequence[Sequence[int]]) -> Points:
        """Positions and seconds of turns, by the drafts of each row."""
        found: list[tuple[int, float]] = []
        for drafts in kinds:
            batch = BatchSummary.verifying(drafts, context)
            host = profile.plan_s(batch) + profile.commit_s(batch)
            device = profile.device_s(batch) + drafting.draft_s * batch.drafts
            # Where steps are launched ahead, the slower of the two sets the pace.
            taken = max(host, device) if depth > 1 else host + device
            found.append((batch.positions, max(taken, LEAST_S)))
        return tuple(found)

    sizes = [
        rows
        for rows in MEASURED_ROWS
        if rows <= step.max_num_seqs and rows * (1 + most) <= step.max_num_batched_tokens
    ] or [1]
    least = points([[1] + [0] * (rows - 1) for rows in sizes])
    return StepTimes(
        points([[0] * rows for rows in sizes]),
        points([[most] * rows for rows in sizes]),
        tuple((rows, taken) for rows, (_, taken) in zip(sizes, least, strict=True)),
    )


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

    def __init__(
        self,
        profile: Profile,
        clock: VirtualClock,
        outputs: Mapping[str, I32] | None = None,
        drafted: DraftedSequences | None = None,
    ) -> None:
        self._profile, self._clock = profile, clock
        self.capabilities = Capabilities(step_sizes=profile.mixed.sizes)
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
