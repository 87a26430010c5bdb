"""A runner that computes nothing, and says how long each step takes."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.capabilities import Capabilities
from paceline.core.plan import Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.sched.course import Course
from paceline.sim.clock import VirtualClock
from paceline.simulate.batch_summary import BatchSummary, pairs_of
from paceline.simulate.drafting import DraftedSequences
from paceline.simulate.profile import Profile

LONGEST = 4096  # turns at once
SLACK = 1.25  # steps get shorter when requests end
NOTHING: F64 = np.empty(0)
OUTPUT_TOKEN = 0  # what requests sample whose outputs are not known


@dataclass(frozen=True, slots=True, eq=False)
class TimedStep:
    """A step on the device."""

    rows: Rows
    batch: BatchSummary
    position: I32  # [rows] of the first token that each row samples
    done_at: float  # seconds on the virtual clock
    result: StepResult


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Turns of the engine: when each begins, and when it has committed a step."""

    begun: F64  # [turns]
    ended: F64  # [turns]
    done_at: F64  # [turns]: when the device has run what the turn launched

    def __len__(self) -> int:
        return len(self.begun)

    def begun_before(self, time: float) -> "Stretch":
        return self.first(int(np.searchsorted(self.begun, time)))

    def first(self, count: int) -> "Stretch":
        if count >= len(self):
            return self
        return Stretch(self.begun[:count], self.ended[:count], self.done_at[:count])


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
        self._pace_s = 0.0  # of a step, lately

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
            self._read_script(new.slot, new.request)

    def _read_script(self, slot: int, request: Request) -> None:
        if (outputs := self._outputs.get(request.id)) is not None:
            self._scripts[slot] = np.concatenate([request.prompt, outputs])

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

    # -- many steps at once -------------------------------------------------

    @property
    def in_flight(self) -> list[Rows]:
        """The rows of the steps in flight, oldest first."""
        return [step.rows for step in self._running]

    def follow(self, course: Course) -> None:
        """Find the tokens of requests that join with the first step of a course."""
        if self._outputs:
            for slot in course.released:
                self._scripts.pop(slot, None)
            for one in course.joined:
                self._read_script(one.slot, one.request)

    def turns_within(self, seconds: float) -> int:
        """About so many turns begin in this time, by the pace of the latest ones."""
        if seconds == inf or not self._pace_s:
            return LONGEST
        return int(min(seconds / self._pace_s * SLACK + 4, LONGEST))

    def stretch(self, course: Course, until: float) -> Stretch:
        """When the turns of a course happen that begin before `until`. Nothing happens yet."""
        profile, behind, turns = self._profile, course.behind, course.most
        host = HostTimes(np.zeros(turns), np.zeros(turns + behind))
        device = np.zeros(turns)
        filling = behind - len(self._running)
        for turn, step in enumerate(self._running, filling):
            host.commit_s[turn] = profile.commit_s(step.batch)
        for first, end, batch in segments(course):
            if batch.admitted:
                device[0] = profile.device_s(batch)
            else:
                device[first:end] = profile.repeats_s(batch, end - first)
            host.plan_s[first:end] = profile.plan_s(batch)
            host.commit_s[first + behind : end + behind] = profile.commit_s(batch)
            ended = dict(course.ended_before(first, end))
            for turn in course.built(first, end):
                changed = replace(batch, finished=ended.get(turn, 0), is_changed=True)
                host.plan_s[turn] = profile.plan_s(changed)
        done_at = [step.done_at for step in self._running]
        found = timed(self._clock(), host, device, done_at, (filling, self._free_at))
        found = found.begun_before(until)
        if len(found) > len(course.joined[:1]):
            self._pace_s = float(device[len(found) - 1]) or self._pace_s
        return found

    def ids(self, course: Course, turns: int) -> I32 | int:
        """The tokens that rows sample in the first turns of a course, one row after the other."""
        if not self._scripts:
            return OUTPUT_TOKEN
        parts: list[I32] = []
        known = course.known_after(turns).tolist()
        for slot, first, end in zip(
            course.slot.tolist(), course.known.tolist(), known, strict=True
        ):
            found = np.full(end - first, OUTPUT_TOKEN, np.int32)
            if (script := self._scripts.get(slot)) is not None:
                new = script[first:end]
                found[: len(new)] = new
            parts.append(found)
        return np.concatenate(parts)

    def skip(self, course: Course, stretch: Stretch, in_flight: Sequence[Plan]) -> None:
        """The turns of a stretch have happened, and left these steps in flight."""
        if self._scripts:
            for slot in course.slot[course.last_turn < len(stretch)].tolist():
                self._scripts.pop(slot, None)
        if self._drafted is not None:
            ahead = np.minimum(course.left, len(stretch))
            self._drafted.skip(course.slot, course.start + ahead)
        self._running.clear()
        self._latest = None
        for plan in in_flight:
            done_at = float(stretch.done_at[plan.step - course.base - 1])
            position = plan.start + plan.rows.count
            is_first = course.joined and plan.step == course.base + 1
            batch = BatchSummary.of(plan) if is_first else BatchSummary.decode_of(position)
            self._latest = TimedStep(plan.rows, batch, position, done_at, sampled(plan.rows))
            if course.behind:
                self._running.append(self._latest)
        self._free_at = float(stretch.done_at[-1])
        self._clock.advance_to(float(stretch.ended[-1]))


class HostTimes(NamedTuple):
    """Seconds of the host in each turn."""

    plan_s: F64  # [turns]
    commit_s: F64  # [turns], and some behind them


def segments(course: Course) -> Iterator[tuple[int, int, BatchSummary]]:
    """The steps of a course with the same rows: the first, the one behind the last, and what a
    step before the first is made of. One in which requests join comes alone, as it is."""
    left, first = course.left, 0
    if course.joined:
        first = 1
        yield 0, 1, with_prompts(course)
    for end in sorted({min(end, course.most) for end in left.tolist() if end > first}):
        yield first, end, BatchSummary.decode_of(course.start[left > first] + first)
        first = end


def with_prompts(course: Course) -> BatchSummary:
    """The first step of a course in which requests join."""
    ends = course.start[course.left > 0] + 1
    rows, counts = len(ends), [one.positions for one in course.joined]
    parts = list(zip(counts, ends[-len(counts) :].tolist(), strict=True))
    singles = [*ends[: -len(counts)].tolist(), *(end for count, end in parts if count == 1)]
    return BatchSummary(
        rows=rows,
        positions=rows + sum(counts) - len(counts),
        samples=rows,
        contexts=int(ends.sum()),
        longest=max(singles, default=0),
        deepest=max((end for count, end in parts if count > 1), default=0),
        pairs=sum(pairs_of(count, end - count) for count, end in parts if count > 1),
        has_prompts=max(counts) > 1,
        admitted=len(counts),
    )


def sampled(rows: Rows, right: I32 | None = None) -> StepResult:
    """One token of each row that samples, and its drafts that are right."""
    ids = np.full((len(rows), 1 + int(rows.drafts.max(initial=0))), OUTPUT_TOKEN, np.int32)
    count = rows.samples.astype(np.int32)
    return StepResult(ids, count if right is None else count + right)


def timed(
    now: float, host: HostTimes, device: F64, in_flight: list[float], empty: tuple[int, float]
) -> Stretch:
    """Turns whose steps take `device` seconds, behind steps that end at the times in flight.

    While the pipeline is empty, the first turns commit nothing: `empty` has their number, and when
    the device has run all before them.

    Sums are made in the order in which single turns make them, so that all times are the same to
    the last bit.
    """
    if empty[0]:
        return filled(now, host, device, empty[1])
    if not in_flight:
        return one_in_flight(now, host, device)
    if len(in_flight) == 1 and (found := device_bound(now, host, device, in_flight[0])) is not None:
        return found
    return one_by_one(now, host, device, in_flight)


def filled(now: float, host: HostTimes, device: F64, free_at: float) -> Stretch:
    """Two steps in flight, from the first turn on, which commits nothing."""
    launched = now + float(host.plan_s[0])
    done_at = max(free_at, launched) + float(device[0])
    rest = Stretch(NOTHING, NOTHING, NOTHING)
    if len(device) > 1:
        later = HostTimes(host.plan_s[1:], host.commit_s[1:])
        rest = timed(launched, later, device[1:], [done_at], (0, 0.0))
    return Stretch(
        np.concatenate([[now], rest.begun]),
        np.concatenate([[launched], rest.ended]),
        np.concatenate([[done_at], rest.done_at]),
    )


def one_in_flight(now: float, host: HostTimes, device: F64) -> Stretch:
    """The host and the device take turns."""
    parts = np.empty(1 + 3 * len(device))
    parts[0], parts[1::3], parts[2::3] = now, host.plan_s, device
    parts[3::3] = host.commit_s[: len(device)]
    times = np.add.accumulate(parts)
    return Stretch(times[:-1:3], times[3::3], times[2::3])


def device_bound(now: float, host: HostTimes, device: F64, in_flight: float) -> Stretch | None:
    """Two steps in flight, and the device never waits for the host; None if it does."""
    done = np.add.accumulate(np.concatenate([[in_flight], device]))
    ended = done[:-1] + host.commit_s[: len(device)]  # a turn waits for the step before its own
    begun = np.concatenate([[now], ended[:-1]])
    if (begun + host.plan_s > done[:-1]).any():
        return None
    return Stretch(begun, ended, done[1:])


def one_by_one(now: float, host: HostTimes, device: F64, in_flight: list[float]) -> Stretch:
    """Any depth, and whoever waits for the other."""
    running = deque(in_flight)
    begun, ended, done = list[float](), list[float](), list[float]()
    free_at = in_flight[-1]
    spent = host.plan_s.tolist(), device.tolist(), host.commit_s.tolist()
    for plan_s, device_s, commit_s in zip(*spent, strict=False):
        begun.append(now)
        launched = now + plan_s
        free_at = max(free_at, launched) + device_s
        done.append(free_at)
        running.append(free_at)
        now = max(launched, running.popleft()) + commit_s
        ended.append(now)
    return Stretch(np.array(begun), np.array(ended), np.array(done))
