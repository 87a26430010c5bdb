"""An engine's cache, as a router sees it over ZMQ."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.core.settings.features import ConnectorConfig
from paceline.engine.components import Connection
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.kv_events import wire_key
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Question
from paceline.engine.loop.ports import NOT_OBSERVED
from paceline.engine.settings import CoreSettings
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.restart import RestartingCore
from paceline.engine.transport.thread import ThreadCore
from paceline.kv.connectors.host import Host
from paceline.text.chat_template import ChatTemplate
from tests.engine.kv_events.consumer import Consumer
from tests.engine.kv_events.support import Endpoints, build, endpoints
from tests.engine.support import ask, components, tokenizer
from tests.kv.block_array import BlockArray

PROMPT = "hello world hello there the the the thin thing things nothing everything"
FACTORY = "tests.engine.kv_events.support:build"


@pytest.fixture
def at() -> Iterator[Endpoints]:
    with endpoints() as found:
        yield found


def sealed(engine: Engine) -> set[int]:
    pool = engine.scheduler.state.cache.pool
    return {wire_key(key) for key in pool._by_key}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_router_knows_the_cache_after_every_turn(at: Endpoints, depth: int) -> None:
    engine = build("", at.fields(), depth=depth, num_blocks=70).engine()
    with at.consumer() as router:
        router.catch_up()
        for number in range(4):
            prompt = [5, 6, 7, *range(number, number + 60)]
            made = Request(f"r{number}", prompt, max_tokens=40, ignore_eos=True)
            engine.submit(made)
        while not (engine.idle and engine.resting):
            engine.turn()
            router.until(lambda: set(router.blocks) == sealed(engine))
        kinds = {event["type"] for batch in router.batches for event in batch}
        assert kinds == {"AllBlocksCleared", "BlockStored", "BlockRemoved"}
        assert engine.answer(Question("reset_prefix_cache"))
        router.until(lambda: not router.blocks)  # although no further turn is due
    engine.close()


def test_without_events_there_is_no_observer() -> None:
    assert components().engine()._observer is NOT_OBSERVED
    events = components(enable_kv_cache_events=False).scheduler.state.cache.events
    assert events is None


def frontend() -> Frontend:
    return Frontend(tokenizer(), ChatTemplate.of(tokenizer()), monotonic)


async def cached(engine: StreamingEngine, router: Consumer) -> int:
    """Run a prompt, and wait until a router knows that it is cached."""
    await engine.generate(ask(PROMPT, max_tokens=4, ignore_eos=True)).whole()
    tokens = list(tokenizer().encode(PROMPT))
    full = len(tokens) // 4 * 4
    router.until(lambda: router.cached(tokens) >= full or router.catch_up())
    return full


def test_a_core_on_a_thread_publishes(at: Endpoints) -> None:
    async def run() -> None:
        core = ThreadCore(build("", at.fields()).engine())
        engine = StreamingEngine(core, frontend())
        with at.consumer() as router:
            assert await cached(engine, router) > 8
            assert await engine.reset_prefix_cache()
            router.until(lambda: not router.blocks)  # although no further step is run
        await engine.shutdown()

    asyncio.run(asyncio.wait_for(run(), 50))


def test_a_core_in_a_process_publishes_and_another_one_after_a_crash(at: Endpoints) -> None:
    def make() -> ProcessCore:
        settings: dict[str, Any] = {"events": at.fields()}
        return ProcessCore(FACTORY, "oracle", settings)

    async def run() -> None:
        core = RestartingCore(make, CoreSettings())
        core.ready()
        engine = StreamingEngine(core, frontend())
        with at.consumer() as router:
            await cached(engine, router)
            router.until(lambda: not router.receive(0.0))
            old, batches = router.last, len(router.batches)
            os.kill(pid := core.pid, signal.SIGKILL)
            while core.pid == pid or engine.healthy() is not None:
                await asyncio.sleep(0.01)
            router.blocks[7] = None, (1, 2, 3, 4)  # something that only the dead core had
            router.until(lambda: router.catch_up() or router.last > old)
            assert not router.blocks
            await cached(engine, router)
            later = [event["type"] for batch in router.batches[batches:] for event in batch]
            assert later[:2] == ["AllBlocksCleared", "BlockStored"]
        await engine.shutdown()

    asyncio.run(asyncio.wait_for(run(), 50))


def test_nothing_is_published_if_the_connector_cannot_start(at: Endpoints) -> None:
    connector = Host(ConnectorConfig("host", kv_connector_extra_config={"cpu_bytes_to_use": 1}))
    made = replace(build("oracle", at.fields()), connection=Connection(connector, BlockArray()))
    with pytest.raises(ConfigError, match="cpu_bytes_to_use is 1"):
        made.engine()
    assert "kv-events" not in [one.name for one in threading.enumerate()]
