"""One server for all tests that leave no trace on it."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.server.support import Scenario, Site, paced, served

Play = Callable[[Scenario], None]


@pytest.fixture(scope="session")
def on() -> Iterator[Play]:
    """Plays a scenario; afterwards every request has to be gone."""

    async def play(scenario: Scenario, site: Site) -> None:
        await scenario(site)
        await site.until(lambda: site.empty)

    with asyncio.Runner() as runner:
        serving = served(breaks=paced)
        site = runner.run(serving.__aenter__())  # type: ignore[arg-type]
        yield lambda scenario: runner.run(play(scenario, site))
        runner.run(serving.__aexit__(None, None, None))  # type: ignore[arg-type]
