"""Answers questions of live pages about an engine, and records only while some are open."""

from asyncio import Lock, sleep, timeout
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from time import monotonic, thread_time, time
from typing import Any, Protocol, runtime_checkable

import msgspec

from paceline.engine.live.frame_maker import FrameMaker
from paceline.engine.live.frames import LATEST, FrameAnswer, FrameQuestion, RequestLife, Seat
from paceline.engine.live.lives import HEAD, life_of
from paceline.engine.live.step_recorder import StepRecorder
from paceline.engine.loop.messages import Capacity, EngineFailed, Question, Verb
from paceline.engine.loop.ports import Clock, StepObserver, all_of
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
        """Some frames after one; the requests in the slots before them, unless the asker has the
        previous frame; and whether there are more."""
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


Ask = Callable[[Verb, str], Awaitable[Any]]
ANSWER_S = 5.0  # for an engine to answer
SOON_S = FRAME_S / 4  # after an answer without frames: the next one was not due yet
SHARED = 8  # latest answers, for several pages

decode_answer = msgspec.msgpack.Decoder(FrameAnswer).decode


@runtime_checkable
class LiveEngine(Protocol):
    """An engine that pages can show, or several."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def live(self) -> "LiveControl": ...


class LiveControl:
    """What pages ask of engines. Pages that are as far as each other share the answers, so that an
    engine is asked about as often for many pages as for one."""

    frame_s, kept = FRAME_S, KEPT_FRAMES

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._engines: dict[int, SharedAnswers] = {}

    async def frames(self, question: FrameQuestion) -> FrameAnswer:
        """Frames after one that a page has; waits until there may be some.

        Raises EngineFailed if the engine is not there or does not answer.
        """
        shared = self._engines.setdefault(question.engine, SharedAnswers(self._asked))
        return await shared.after(question)

    async def _asked(self, question: FrameQuestion) -> FrameAnswer:
        try:
            async with timeout(ANSWER_S):
                return decode_answer(await self._ask("frames", question.argument()))
        except TimeoutError:
            raise EngineFailed(f"the engine has not answered for {ANSWER_S:g} s") from None

    async def life(self, request_id: str) -> tuple[RequestLife, list[int]]:
        """The life of a request, and the first tokens of its prompt.

        Raises RequestError if it is not remembered.
        """
        found = await self._ask("life", request_id)
        head: list[int] = found.pop(HEAD)
        return msgspec.convert(found, RequestLife), head


class SharedAnswers:
    """The latest answers of one engine, by what was asked. At most one question is open."""

    def __init__(self, ask: Callable[[FrameQuestion], Awaitable[FrameAnswer]]) -> None:
        self._ask = ask
        self._asking = Lock()
        self._answers: dict[FrameQuestion, FrameAnswer] = {}
        self._latest = FrameQuestion()  # what will be asked next by those that have every frame
        self._due = 0.0  # when it may have an answer
        self._failures, self._trouble = 0, ""  # how often it failed, and why the last time

    async def after(self, question: FrameQuestion) -> FrameAnswer:
        if question != self._latest:
            return self._answers.get(question) or await self._answered(question)
        failures = self._failures
        async with self._asking:
            if found := self._answers.get(question):
                return found
            if failures != self._failures:  # no page waits for a failure of its own
                raise EngineFailed(self._trouble)
            await sleep(self._due - monotonic())
            try:
                return await self._answered(question)
            except EngineFailed as error:
                self._failures, self._trouble = failures + 1, str(error)
                raise

    async def _answered(self, question: FrameQuestion) -> FrameAnswer:
        found = await self._ask(question)
        now = monotonic()
        if found.more:
            return found
        if found.frames:
            self._latest = FrameQuestion(question.engine, found.run, found.number)
            if question.number > 0:  # others ask the same soon
                self._answers[question] = found
            if len(self._answers) > SHARED:
                del self._answers[next(iter(self._answers))]
        self._due = now + (FRAME_S if found.frames else SOON_S)
        return found
