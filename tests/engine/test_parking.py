"""A parked request waits for `wake`, on a thread core and on a process core alike."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.loop.ports import Core
from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.restart import RestartingCore
from paceline.engine.transport.thread import ThreadCore
from paceline.text.chat_template import ChatTemplate
from tests.engine.support import ask, components, tokenizer

Use = Callable[[StreamingEngine], Awaitable[None]]
KINDS = pytest.mark.parametrize("kind", ["thread", "process", "restarting"])


def core(kind: str, limits: EngineSettings, **settings: Any) -> Core:
    if kind == "thread":
        return ThreadCore(replace(components(**settings), settings=limits).engine())

    def make() -> ProcessCore:
        return ProcessCore("tests.engine.support:build", "oracle", settings, limits)

    return make() if kind == "process" else RestartingCore(make, CoreSettings())


def on(kind: str, use: Use, limits: EngineSettings | None = None, **settings: Any) -> None:
    running = core(kind, limits or EngineSettings(), **settings)
    frontend = Frontend(tokenizer(), ChatTemplate.of(tokenizer()), monotonic)

    async def run() -> None:
        engine = StreamingEngine(running, frontend)
        try:
            await use(engine)
        finally:
            await engine.shutdown()

    asyncio.run(asyncio.wait_for(run(), 50))


async def state(engine: StreamingEngine, request_id: str) -> str:
    return (await engine.snapshot())["requests"][request_id]["state"]


async def it_runs_once_it_is_woken_and_others_pass_it_meanwhile(engine: StreamingEngine) -> None:
    parked = engine.generate(ask("hello", "a", max_tokens=4), parked="grammar")
    other = await engine.generate(ask("there", "b", max_tokens=4)).whole()
    assert other.finished
    assert await state(engine, "a") == "WAITING_FOR_GRAMMAR"
    assert "parked for grammar" in await engine.explain("a")
    report = await engine.stats()
    assert report.labelled["reason"] == {"capacity": 0, "deferred": 1}
    Thread(target=engine.wake, args=("a",)).start()
    whole = await parked.whole()
    alone = await engine.generate(ask("hello", "c", max_tokens=4)).whole()
    assert whole.outputs[0].token_ids == alone.outputs[0].token_ids
    life = await engine.explain("a")
    assert life.index("parked") < life.index("admitted")


async def a_waiting_request_is_parked_and_keeps_its_place(engine: StreamingEngine) -> None:
    await engine.pause("all")
    streams = [engine.generate(ask("hello", name, max_tokens=2)) for name in "abc"]
    engine.park("a", "remote_kv")
    found = await engine.snapshot()
    assert (found["parked"], found["waiting"]) == ({"a": "remote_kv"}, ["b", "c"])
    engine.wake("a")
    assert (await engine.snapshot())["waiting"] == ["a", "b", "c"]
    await engine.resume()
    for stream in streams:
        await stream.whole()


async def a_request_that_runs_or_is_unknown_is_left_alone(engine: StreamingEngine) -> None:
    stream = engine.generate(ask("hello", "a", max_tokens=100, ignore_eos=True))
    await stream.__anext__()
    engine.park("a", "grammar")
    engine.park("b", "grammar")
    engine.wake("a")
    engine.wake("c")
    assert (await stream.whole()).outputs[0].finish_reason == "length"


async def it_ends_by_its_own_timeout(engine: StreamingEngine) -> None:
    asked = replace(ask("hello", "d"), timeout=0.05)
    output = await engine.generate(asked, parked="grammar").whole()
    assert output.outputs[0].finish_reason == "timeout"
    assert (await engine.snapshot())["parked"] == {}


@KINDS
def test_it_ends_by_the_timeout_of_the_queue(kind: str) -> None:
    async def use(engine: StreamingEngine) -> None:
        output = await engine.generate(ask("hello", "a"), parked="grammar").whole()
        assert output.outputs[0].finish_reason == "timeout"

    on(kind, use, queue_timeout_s=0.05)


async def it_can_be_aborted(engine: StreamingEngine) -> None:
    stream = engine.generate(ask("hello", "e"), parked="grammar")
    assert await engine.abort("e")
    assert (await stream.whole()).outputs[0].finish_reason == "abort"
    engine.wake("e")
    assert (await engine.snapshot())["requests"] == {}


@KINDS
def test_parked_requests_are_no_stall(kind: str) -> None:
    async def use(engine: StreamingEngine) -> None:
        stream = engine.generate(ask("hello", "a", max_tokens=1), parked="grammar")
        await asyncio.sleep(0.3)
        assert engine.healthy() is None
        engine.wake("a")
        await stream.whole()

    on(kind, use, EngineSettings(stall_s=0.1))


async def a_reason_is_needed(engine: StreamingEngine) -> None:
    with pytest.raises(RequestError, match="without a reason"):
        engine.park("a", "")


@KINDS
def test_parking_in_a_core_that_is_gone_is_quiet(kind: str) -> None:
    async def use(engine: StreamingEngine) -> None:
        stream = engine.generate(ask("hello", "a"), parked="grammar")
        await engine.shutdown()
        engine.park("a", "grammar")
        engine.wake("a")
        assert (await stream.whole()).outputs[0].finish_reason == "abort"
        with pytest.raises(EngineFailed):
            engine.generate(ask("hello", "b"), parked="grammar")

    on(kind, use)


SCENARIOS: list[Use] = [
    it_runs_once_it_is_woken_and_others_pass_it_meanwhile,
    a_waiting_request_is_parked_and_keeps_its_place,
    a_request_that_runs_or_is_unknown_is_left_alone,
    it_ends_by_its_own_timeout,
    it_can_be_aborted,
    a_reason_is_needed,
]


@KINDS
def test_a_parked_request(kind: str) -> None:
    """One engine for all of them, because a process takes longer to start than they do."""

    async def use(engine: StreamingEngine) -> None:
        for scenario in SCENARIOS:
            await scenario(engine)

    on(kind, use)
