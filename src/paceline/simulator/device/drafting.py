"""Drafts in a simulation: which of them are right, and how long steps with drafts take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from zlib import crc32

import numpy as np

from paceline.core.arrays import I32
from paceline.core.capabilities import MEASURED_ROWS, Points, StepTimes
from paceline.core.errors import ConfigError
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.settings.checks import check_types, not_negative, require
from paceline.core.settings.config import Config
from paceline.engine.loop.turn_times import CONTEXT
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import Profile

LEAST_S = 1e-9  # of a profile that has no time for something


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
