"""An engine on an event loop, for tests of its streams."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from paceline.core.plan import Plan
from paceline.engine.api import AsyncEngine, TextDelta
from paceline.engine.components import EngineComponents
from paceline.engine.streaming import StreamingEngine
from tests.engine.support import OraclePort, assert_nothing_left, components


def with_engine(
    use: Callable[[StreamingEngine], Awaitable[None]],
    leaves_nothing: bool = True,
    made: EngineComponents | None = None,
    **settings: Any,
) -> None:
    """Run something on an engine, and see that nothing is left of it."""
    made = made or components(**settings)

    async def run() -> None:
        engine = StreamingEngine.of(made)
        checked: AsyncEngine = engine
        try:
            await use(engine)
            if leaves_nothing:
                await checked.drain()
        finally:
            await engine.shutdown()
        assert isinstance(made.runner, OraclePort)
        assert made.runner.closed

    asyncio.run(asyncio.wait_for(run(), 50))
    if leaves_nothing:
        assert_nothing_left(made.scheduler)


async def pieces_of(stream: Any) -> list[TextDelta]:
    return [delta async for delta in stream]


def paced(_plan: Plan, where: str) -> bool:
    """A step takes its time, so that a request does not end before it is paused."""
    if where == "launch":
        time.sleep(0.002)
    return False
