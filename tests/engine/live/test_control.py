"""Pages that are as far as each other share what an engine answers."""

import asyncio
from typing import Any

import msgspec
import pytest

from paceline.engine.api import EngineFailed
from paceline.engine.live import feed as module
from paceline.engine.live.feed import LiveControl
from paceline.engine.live.frames import FrameAnswer, FrameQuestion
from tests.engine.live.shown import ShownEngine


class AskedEngine(LiveControl):
    """Asks an engine on a virtual clock, which sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(self._answered)
        self.shown, self.questions = ShownEngine(), list[FrameQuestion]()
        monkeypatch.setattr(module, "monotonic", self.shown.clock)
        monkeypatch.setattr(module, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.shown.clock.advance_to(self.shown.clock() + seconds)
        await asyncio.sleep(0)

    async def _answered(self, verb: str, argument: str) -> Any:
        assert verb == "frames"
        self.questions.append(FrameQuestion.of(argument))
        return msgspec.msgpack.encode(self.shown.answer(self.questions[-1]))


async def follow(control: LiveControl, answers: int) -> list[int]:
    """The frames that a page gets."""
    question, numbers = FrameQuestion(), list[int]()
    for _ in range(answers):
        answer = await control.frames(question)
        numbers += range(answer.number - len(answer.frames) + 1, answer.number + 1)
        question = FrameQuestion(0, answer.run, answer.number)
    return numbers


def test_many_pages_ask_as_often_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        control = AskedEngine(monkeypatch)
        assert await follow(control, 3) == [1, 2, 3]
        alone = len(control.questions)
        found = await asyncio.gather(*(follow(control, 6) for _ in range(5)))
        for numbers in found:
            assert numbers == list(range(1, numbers[-1] + 1)), "none is lost, none comes twice"
        assert len(control.questions) - alone <= 5 + 6, "each asks for the history by itself"

    asyncio.run(scenario())


def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)

    async def never(verb: str, argument: str) -> FrameAnswer:
        asked.append(argument)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    asked: list[str] = []

    async def scenario() -> None:
        control = LiveControl(never)
        pages = [control.frames(FrameQuestion()) for _ in range(3)]
        for found in await asyncio.gather(*pages, return_exceptions=True):
            assert isinstance(found, EngineFailed)
            assert "not answered for" in str(found)
        assert len(asked) == 1, "pages do not wait for one another before they are told"

    asyncio.run(scenario())
