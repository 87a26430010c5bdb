"""Answers questions of live pages about an engine, and records only while some are open."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from time import thread_time, time
from typing import Any

import msgspec

from paceline.engine.core.messages import Question
from paceline.engine.core.observers import all_of
from paceline.engine.core.ports import Clock, StepObserver
from paceline.engine.live.frame_maker import FrameMaker
from paceline.engine.live.frames import LATEST, FrameAnswer, FrameQuestion, Seat
from paceline.engine.live.lives import life_of
from paceline.engine.live.step_recorder import StepRecorder
from paceline.sched.scheduler import Scheduler

FRAME_S = 0.5  # between two frames
RECORDS = 64  # of steps, in a frame
EARLY = 0.8  # of it: pages do not ask at exact times
SHARE = 0.0025  # of the time that may go into frames; if they take long, they are made less often
KEPT_FRAMES, KEPT_BYTES = 600, 16 * 2**20
ANSWER_BYTES = 2**18  # of one answer, which has at least one frame
UNASKED_S = 5.0  # after which nothing is recorded any more

encode_json = msgspec.json.Encoder().encode


class KeptFrame(msgspec.Struct, frozen=True):
    number: int
    body: bytes
    seats: tuple[Seat, ...]


class FrameHistory:
    """The latest frames, encoded. `_base` has who was in each slot before the first of them, and
    `_seated` before the last: an answer reads no seats, of which there may be very many."""

    def __init__(self) -> None:
        self._frames: deque[KeptFrame] = deque()
        self._bytes = 0
        self._base: dict[int, Seat] = {}
        self._seated: dict[int, Seat] = {}

    @property
    def last(self) -> int:
        """The number of the latest frame; 0: there is none."""
        return self._frames[-1].number if self._frames else 0

    def add(self, frame: KeptFrame) -> None:
        if self._frames:
            self._seated |= by_slot(self._frames[-1])
        self._frames.append(frame)
        self._bytes += len(frame.body)
        while len(self._frames) > KEPT_FRAMES or self._bytes > KEPT_BYTES:
            oldest = self._frames.popleft()
            self._bytes -= len(oldest.body)
            self._base |= by_slot(oldest)

    def after(self, number: int) -> tuple[list[KeptFrame], tuple[Seat, ...], bool]:
        """Some frames after one, who was in the slots before them unless the asker has the frame
        before them, and whether there are more."""
        if number == LATEST:
            return [self._frames[-1]], tuple(self._seated.values()), False
        before = self._frames[0].number - 1
        base = () if number and number >= before else tuple(self._base.values())
        found, size = list[KeptFrame](), 0
        for frame in islice(self._frames, max(number - before, 0), None):
            if found and size + len(frame.body) > ANSWER_BYTES:
                return found, base, True
            found.append(frame)
            size += len(frame.body)
        return found, base, False


def by_slot(frame: KeptFrame) -> dict[int, Seat]:
    """The last seat of each slot."""
    return {seat.slot: seat for seat in frame.seats}


class LiveFeed:
    """Makes a frame when one is asked for and the one before it is old enough.

    Recording begins with the first question. It ends some seconds after the last one; the history
    is kept.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        observer: StepObserver,
        observe: Callable[[StepObserver], None],
        meter: Clock = thread_time,
    ) -> None:
        """`observer` is the engine's own one, and `observe` gives the engine another instead.
        `meter` is the CPU time of the thread."""
        self._scheduler, self._clock = scheduler, clock
        self._observer, self._observe, self._meter = observer, observe, meter
        self.run = int(time() * 1000)
        self._maker: FrameMaker | None = None
        self._recording = False
        self._history = FrameHistory()
        self._due = 0.0  # when the next frame may be made

    def answer(self, question: Question) -> Any:
        """RequestError if a request is not remembered, or if a question makes no sense."""
        if question.verb == "life":
            return life_of(self._scheduler, question.argument, self._clock())
        return msgspec.msgpack.encode(self.frames(FrameQuestion.of(question.argument)))

    def frames(self, question: FrameQuestion) -> FrameAnswer:
        maker, now = self._begun(), self._clock()
        maker.recorder.until = now + UNASKED_S
        if now >= self._due:
            self._make(maker, question.engine, now)
        if question.run != self.run:
            question = FrameQuestion(question.engine, self.run, min(question.number, 0))
        if question.number == self._history.last:
            return FrameAnswer(self.run, question.number)
        found, base, more = self._history.after(question.number)
        bodies = tuple(one.body for one in found)
        return FrameAnswer(self.run, found[-1].number, bodies, base, more)

    def _begun(self) -> FrameMaker:
        if self._maker is None:
            recorder = StepRecorder(self._scheduler, self._clock, FRAME_S / RECORDS, self._meter)
            recorder.watch, recorder.expired = self._watch, self._end
            self._maker = FrameMaker(self._scheduler, recorder, self._clock, self.run)
        if not self._recording:
            self._recording = True
            self._maker.begin()
        return self._maker

    def _watch(self, recorder: StepObserver) -> None:
        self._observe(all_of([self._observer, recorder]))

    def _end(self) -> None:
        self._recording = False
        self._observe(self._observer)

    def _make(self, maker: FrameMaker, engine: int, now: float) -> None:
        begun = self._meter()
        frame = maker.frame(engine)
        self._history.add(KeptFrame(frame.number, encode_json(frame), frame.seats))
        took_s = self._meter() - begun
        self._due = now + max(FRAME_S * EARLY, took_s / SHARE)
