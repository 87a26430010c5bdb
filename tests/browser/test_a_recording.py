"""A recording in the same page: it begins at the first step, plays, and tells lives."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import uvicorn
from playwright.sync_api import Page, expect

from paceline import Request
from paceline.cli.commands.replay import replay_of
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.testing.oracle import OracleRunner
from paceline.viewer.page import RecordedFrames, view_app
from paceline.viewer.replayed import ReplayedRun
from tests.browser.site import Site

STEP_S = 0.1
BEGIN = 5000.0  # the clock of an engine does not begin at 0


def record(path: Path) -> None:
    """Some requests that do not all fit, in steps of a tenth of a second."""
    pool = {"num_blocks": 16, "block_size": 4}
    scheduler = RecordedScheduler.create(
        record=str(path), max_num_seqs=4, max_model_len=64, max_num_batched_tokens=16, **pool
    )
    runner = OracleRunner(blocks=16, block_size=4, vocab=50)
    for i in range(8):
        scheduler.submit(Request(f"r{i}", np.arange(10) + 20 * i, max_tokens=12), now=BEGIN)
    now = BEGIN
    while not scheduler.idle:
        plan = scheduler.plan(now=now)
        now += STEP_S
        scheduler.commit(plan, runner.run(plan), now=now)
    scheduler.close()


@pytest.fixture
def recording(served: Site, tmp_path: Path) -> Iterator[str]:
    """The address of a page that shows a recording."""
    path = tmp_path / "run.jsonl"
    record(path)
    source = RecordedFrames(ReplayedRun(replay_of(path, True, "view")), path.name)
    config = uvicorn.Config(view_app(source), port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.run_coroutine_threadsafe(server.serve(), served.loop)
    while not server.started:
        assert served.loop.is_running(), "tests of a page that ends its server come last"
        assert not serving.done(), serving.result()
        sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/dashboard"
    server.should_exit = server.force_exit = True
    serving.result(10)


def test_it_begins_at_the_beginning_and_plays(page: Page, recording: str) -> None:
    page.goto(recording)
    expect(page.locator("#model")).to_have_text("run.jsonl")
    expect(page.locator("#state")).to_have_text("Paused")
    first = page.inner_text("#slots-note")
    page.keyboard.press("Space")
    expect(page.locator("#state")).to_have_text("Playing")
    expect(page.locator("#slots-note")).not_to_have_text(first)
    page.keyboard.press("End")
    expect(page.locator("#state")).to_have_text("End of the recording")
    expect(page.locator("#slots-note")).to_contain_text("0 of 4 taken")
    page.fill("#find-id", "r7")
    page.keyboard.press("Enter")
    expect(page.locator("#life-state")).to_have_text("finished: length")
    sentences = page.inner_text("#life-sentences")
    assert re.search(r"waited [\d.]+ s: .* for (blocks|a slot)", sentences)
