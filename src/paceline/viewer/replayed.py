"""Frames of a recorded run: what a live page would have shown."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import msgspec

from paceline.core.errors import RequestError
from paceline.core.plan import Outputs, Plan
from paceline.engine.live.feed import FRAME_S, RECORDS
from paceline.engine.live.frame_maker import FrameMaker
from paceline.engine.live.frames import Frame, StepRecord
from paceline.engine.live.lives import HEAD, life_of
from paceline.engine.live.step_recorder import StepRecorder
from paceline.sched.replay.replayer import Replay

MOST_FRAMES = 600
MOST_LIVES = 20_000  # of requests that ended; each takes a kilobyte or two
RUN = 1


class ReplayedRun:
    """Replays a recording and makes frames, first one per period. When there are too many, two
    become one, and the period is twice as long.

    Times are those of the recorded calls, so that the time from a plan to its commit counts as
    waiting for the device.
    """

    def __init__(self, replay: Replay, most_frames: int = MOST_FRAMES) -> None:
        self._replay, self._most_frames = replay, most_frames
        self.frame_s = FRAME_S
        self._now = replay.now
        self._recorder = StepRecorder(
            replay.scheduler, self._clock, FRAME_S / RECORDS, meter=lambda: 0.0
        )
        self._recorder.until = inf
        self._maker = FrameMaker(replay.scheduler, self._recorder, self._clock, RUN)
        self._frames: list[Frame] = []
        self._due: float | None = None  # when the next frame is made; None: nothing happened yet
        self._ended: dict[str, dict[str, Any]] = {}
        replay.on_result, replay.on_commit = self._landed, self._committed

    def _clock(self) -> float:
        return self._now

    def run(self) -> list[Frame]:
        """Replay all of it. The frames are numbered from 1, and have all steps together at most
        `RECORDS` records each."""
        for plan in self._replay.plans():
            self._planned(plan)
        if self._due is not None:
            self._make()
        frames = enumerate(self._frames, start=1)
        return [msgspec.structs.replace(frame, number=number) for number, frame in frames]

    def life(self, request_id: str) -> dict[str, Any]:
        """The fields of a `RequestLife`. RequestError if it is not known, or not remembered."""
        try:
            found = life_of(self._replay.scheduler, request_id, self._replay.now)
        except RequestError:
            if request_id not in self._ended:
                raise
            found = self._ended[request_id]
        return {name: value for name, value in found.items() if name != HEAD}

    # -- what the engine did ------------------------------------------------

    def _planned(self, plan: Plan) -> None:
        self._now = self._replay.now
        if self._due is None:
            self._maker.begin()
            self._due = self._now + self.frame_s
        recorder = self._recorder
        recorder.planning()
        recorder.planned(plan)
        recorder.launched(plan)
        self._remember(plan.finished)
        self._make_due()

    def _landed(self, plan: Plan, now: float) -> None:
        self._now = max(self._now, now)
        self._recorder.landed(plan)

    def _committed(self, plan: Plan, outputs: Outputs) -> None:
        self._recorder.committed(plan, outputs)
        self._recorder.changed()
        self._make_due()

    def _remember(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._ended[name] = life_of(self._replay.scheduler, name, self._now)
            except RequestError:  # the scheduler remembers no finished requests
                return
            if len(self._ended) > MOST_LIVES:
                del self._ended[next(iter(self._ended))]

    # -- frames -------------------------------------------------------------

    def _make_due(self) -> None:
        if self._due is not None and self._now >= self._due:
            self._make()
            self._due = self._now + self.frame_s

    def _make(self) -> None:
        self._frames.append(self._maker.frame(engine=0))
        if len(self._frames) > self._most_frames:
            firsts = range(0, len(self._frames), 2)
            self._frames = [joined(self._frames[first : first + 2]) for first in firsts]
            self.frame_s *= 2
            self._recorder.gap_s *= 2


def joined(frames: Sequence[Frame]) -> Frame:
    """One frame for one or two that follow each other."""
    *earlier, last = frames
    if not earlier:
        return last
    (first,) = earlier
    seconds = last.time - first.since
    tokens = sum(one.tokens_per_s * (one.time - one.since) for one in frames)
    return msgspec.structs.replace(
        last,
        since=first.since,
        steps=thinned((*first.steps, *last.steps), RECORDS),
        seats=(*first.seats, *last.seats),
        tokens_per_s=tokens / seconds if seconds > 0 else 0.0,
    )


def thinned(records: tuple[StepRecord, ...], most: int) -> tuple[StepRecord, ...]:
    """Every second record, if there are too many; it says how many were left out before it."""
    while len(records) > most:
        kept: list[StepRecord] = []
        for at in range(len(records) - 1, -1, -2):  # the last one is kept
            one, before = records[at], records[at - 1] if at else None
            more = 0 if before is None else 1 + before.left_out
            kept.append(msgspec.structs.replace(one, left_out=one.left_out + more))
        records = tuple(reversed(kept))
    return records
