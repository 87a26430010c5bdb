"""A runner that computes nothing, and says how long each step takes."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.capabilities import Capabilities
from paceline.core.plan import Plan, Rows, StepResult
from paceline.sim.clock import VirtualClock
from paceline.simulate.batch_summary import BatchSummary
from paceline.simulate.profile import Profile

OUTPUT_TOKEN = 0  # what requests sample whose outputs are not known


@dataclass(frozen=True, slots=True, eq=False)
class TimedStep:
    """A step on the device."""

    rows: Rows
    batch: BatchSummary
    position: I32  # [rows] of the token that each row samples
    done_at: float  # seconds on the virtual clock
    result: StepResult


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Turns of the engine that repeat the latest one: when each begins, and when it has committed
    a step."""

    begun: F64  # [turns]
    ended: F64  # [turns]
    done_at: F64  # [turns]: when the device has run what the turn launched

    def __len__(self) -> int:
        return len(self.begun)

    def begun_before(self, time: float) -> "Stretch":
        return self._first(int(np.searchsorted(self.begun, time)))

    def ended_by(self, time: float) -> "Stretch":
        """The turns that end before `time`."""
        return self._first(int(np.searchsorted(self.ended, time)))

    def _first(self, count: int) -> "Stretch":
        return Stretch(self.begun[:count], self.ended[:count], self.done_at[:count])


class TimedRunner:
    """The engine's `Runner` port on a virtual clock, with the times of a profile.

    The host plans, the device runs one step after another, the host commits. `outputs` has the
    tokens that a request samples, by id; any other samples `OUTPUT_TOKEN`.
    """

    capabilities = Capabilities()

    def __init__(
        self, profile: Profile, clock: VirtualClock, outputs: Mapping[str, I32] | None = None
    ) -> None:
        self._profile, self._clock = profile, clock
        self._outputs = outputs or {}
        self._scripts: dict[int, I32] = {}  # tokens by position, by slot
        self._running: deque[TimedStep] = deque()
        self._latest: TimedStep | None = None
        self._free_at = 0.0  # when the device has run all of them

    # -- the port of the engine ---------------------------------------------

    def launch(self, plan: Plan) -> None:
        if self._outputs:
            self._follow(plan)
        if plan.empty:
            return
        batch, result = self._step(plan)
        position = plan.start + plan.rows.count
        self._clock.advance_to(self._clock() + self._profile.plan_s(batch))
        self._free_at = max(self._free_at, self._clock()) + self._profile.device_s(batch)
        self._latest = TimedStep(plan.rows, batch, position, self._free_at, result)
        self._running.append(self._latest)

    def _step(self, plan: Plan) -> tuple[BatchSummary, StepResult]:
        """What the step is made of, and what it samples."""
        latest = self._latest
        if latest is not None and latest.rows is plan.rows:  # a steady decode repeats its rows
            return latest.batch.later(1), latest.result
        return BatchSummary.of(plan), sampled(plan.rows)

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
        return replace(oldest.result, ids=self.ids(oldest.rows, oldest.position, 1))

    def is_lost(self) -> bool:
        """A simulated device survives every error."""
        return False

    def close(self) -> None:
        """There is no device to close."""

    # -- many steps at once -------------------------------------------------

    def repeats(self, rows: Rows, depth: int) -> bool:
        """Is the pipeline as full as between two turns, and are all its steps of these rows?"""
        latest, running = self._latest, self._running
        if latest is None or latest.rows is not rows or len(running) != depth - 1:
            return False
        return all(step.rows is rows for step in running)

    def stretch(self, most: int, until: float) -> Stretch:
        """When the next turns happen, if they repeat the latest step: up to `most`, and as far as
        they begin before `until`. Nothing happens yet."""
        assert self._latest is not None
        batch, profile, now = self._latest.batch.later(0), self._profile, self._clock()
        soonest = profile.device_s(batch)
        if soonest > 0 and until < inf:
            most = min(most, int((until - now) / soonest) + 2 + len(self._running))
        device = profile.repeats_s(batch, most)
        host = HostTurn(now, profile.plan_s(batch), profile.commit_s(batch))
        return timed(host, device, [step.done_at for step in self._running]).begun_before(until)

    def ids(self, rows: Rows, position: I32, steps: int) -> I32:  # [rows, steps]
        """The tokens that rows sample in the next steps, from `position[i]` on."""
        found = np.full((len(rows), steps), OUTPUT_TOKEN, np.int32)
        if self._scripts:
            for row, slot in enumerate(rows.slot.tolist()):
                script = self._scripts.get(slot)
                if script is not None:
                    new = script[position[row] : position[row] + steps]
                    found[row, : len(new)] = new
        return found

    def skip(self, stretch: Stretch) -> None:
        """The turns of a stretch have happened."""
        assert self._latest is not None
        steps, latest = len(stretch), self._latest
        repeated = latest.batch.later(steps)
        done = stretch.done_at[steps - len(self._running) :].tolist()
        self._running = deque(
            replace(one, batch=repeated, position=one.position + steps, done_at=time)
            for one, time in zip(self._running, done, strict=True)
        )
        self._latest = replace(latest, batch=repeated)
        self._free_at = float(stretch.done_at[-1])
        self._clock.advance_to(float(stretch.ended[-1]))


@dataclass(frozen=True, slots=True)
class HostTurn:
    """The host's part of a turn."""

    now: float  # when the first turn begins
    plan_s: float
    commit_s: float


def sampled(rows: Rows) -> StepResult:
    """One token of each row that samples."""
    ids = np.full((len(rows), 1), OUTPUT_TOKEN, np.int32)
    return StepResult(ids, rows.samples.astype(np.int32))


def timed(host: HostTurn, device: F64, in_flight: list[float]) -> Stretch:
    """Turns whose steps take `device` seconds, behind steps that end at the times in flight.

    Sums are made in the order in which single turns make them, so that all times are the same to
    the last bit.
    """
    if not in_flight:
        return one_in_flight(host, device)
    if len(in_flight) == 1 and (found := device_bound(host, device, in_flight[0])) is not None:
        return found
    return one_by_one(host, device, in_flight)


def one_in_flight(host: HostTurn, device: F64) -> Stretch:
    """The host and the device take turns."""
    parts = np.empty((len(device), 3))
    parts[:, 0], parts[:, 1], parts[:, 2] = host.plan_s, device, host.commit_s
    times = np.add.accumulate(np.concatenate([[host.now], parts.ravel()]))
    return Stretch(times[:-1:3], times[3::3], times[2::3])


def device_bound(host: HostTurn, device: F64, in_flight: float) -> Stretch | None:
    """Two steps in flight, and the device never waits for the host; None if it does."""
    done = np.add.accumulate(np.concatenate([[in_flight], device]))
    ended = done[:-1] + host.commit_s  # a turn waits for the step before its own
    begun = np.concatenate([[host.now], ended[:-1]])
    if (begun + host.plan_s > done[:-1]).any():
        return None
    return Stretch(begun, ended, done[1:])


def one_by_one(host: HostTurn, device: F64, in_flight: list[float]) -> Stretch:
    """Any depth, and whoever waits for the other."""
    now, running = host.now, deque(in_flight)
    begun, ended, done = list[float](), list[float](), list[float]()
    free_at = in_flight[-1]
    for seconds in device.tolist():
        begun.append(now)
        launched = now + host.plan_s
        free_at = max(free_at, launched) + seconds
        done.append(free_at)
        running.append(free_at)
        now = max(launched, running.popleft()) + host.commit_s
        ended.append(now)
    return Stretch(np.array(begun), np.array(ended), np.array(done))
