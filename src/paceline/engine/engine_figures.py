"""The figures of engines: what their schedulers answer, or answered last."""

from asyncio import timeout
from collections.abc import Awaitable, Callable
from typing import Any

from paceline.engine.core.figures import NO_REQUESTS, first_figures
from paceline.engine.core.messages import Capacity, EngineFailed, Verb

STATS_S = 2.0  # to wait for figures; then the previous ones count


class EngineFigures:
    """The latest answer of each engine to "gauges"."""

    def __init__(self, ask: Callable[[Verb, str], Awaitable[Any]], capacity: Capacity) -> None:
        self._ask = ask
        self._latest = [first_figures(capacity)] * capacity.engines

    async def of(self, engine: int) -> dict[str, Any]:
        """The figures of an engine; the latest known ones if it does not answer."""
        try:
            async with timeout(STATS_S):
                self._latest[engine] = await self._ask("gauges", str(engine))
        except TimeoutError:
            pass
        except EngineFailed:
            self._latest[engine] = self._latest[engine] | NO_REQUESTS
        return self._latest[engine]
