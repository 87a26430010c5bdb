"""One server without a model, and one with a small real one, for all tests that do no harm."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.golden.small_model import small_model
from tests.server.real import running
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


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def real(folder: Path) -> Iterator[httpx.Client]:
    """A server with a small real model, whose step loop is in a process of its own.

    Its steps are short, so that prompts are computed in several.
    """
    with running(folder, max_num_batched_tokens=6) as server:
        yield server.http
