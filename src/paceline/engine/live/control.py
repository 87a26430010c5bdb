"""Asks engines for frames, and for the lives of requests, from an event loop."""

from asyncio import Lock, sleep, timeout
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import msgspec

from paceline.engine.core.messages import EngineFailed, Verb
from paceline.engine.live.feed import FRAME_S, KEPT_FRAMES
from paceline.engine.live.frames import FrameAnswer, FrameQuestion, RequestLife
from paceline.engine.live.lives import HEAD

Ask = Callable[[Verb, str], Awaitable[Any]]
ANSWER_S = 5.0  # for an engine to answer
SOON_S = FRAME_S / 4  # after an answer without frames: the next one was not due yet
SHARED = 8  # latest answers, for several pages

decode_answer = msgspec.msgpack.Decoder(FrameAnswer).decode


@runtime_checkable
class LiveEngine(Protocol):
    """An engine that pages can show, or several."""

    @property
    def engines(self) -> int: ...

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
