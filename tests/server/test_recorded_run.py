"""Promise 7 on a served run: what a server recorded replays to the same plans, bit for bit."""

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from paceline.cli.main import main
from paceline.sched.replay.reader import RecordingEnd, files_of_run
from paceline.sched.replay.records import RecordKind
from paceline.sched.replay.replayer import Replay
from tests.server.real import PATIENCE_S, Running, running

PATH = "/v1/completions"
REQUESTS = 230
AT_ONCE = 12  # requests that the client has open
# Prompts and outputs of up to 80 tokens, eight at a time, in a pool of 120 tokens: most are
# preempted. Two steps are in flight.
TIGHT: dict[str, Any] = {
    "policy": "priority",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "block_size": 4,
    "num_gpu_blocks_override": 30,
    "max_model_len": 100,
    "reserve_full_prompt": False,
    "num_speculative_tokens": 2,
    "depth": 2,
    "journal_requests": 4,  # the state that a file begins with is small
    "journal_spells": 16,
}
KINDS: list[dict[str, Any]] = [
    {"ignore_eos": True, "temperature": 0.0},
    {"stop": ["the"], "temperature": 1.0},
    {"stop": ["q", "fox"], "min_tokens": 3, "temperature": 1.0},
    {"stop_token_ids": [5, 6, 7, 8], "temperature": 1.0, "n": 2},
    {"ignore_eos": True, "temperature": 1.0, "n": 3},
    {"temperature": 1.0, "best_of": 2},
    {"beam_width": 2, "n": 2},
]
HUNG_UP: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "stream": True}


def body(random: Random) -> dict[str, Any]:
    """A request of any length, priority and kind."""
    shared = list(range(10, 10 + random.choice([0, 0, 24])))  # some begin alike
    prompt = shared + [random.randrange(2, 60) for _ in range(random.randint(1, 30))]
    return {
        "prompt": prompt,
        "max_tokens": random.randint(3, 12),
        "priority": random.randrange(4),
        "seed": random.randrange(1000),
        **random.choice(KINDS),
    }


@dataclass
class Client:
    """Sends the requests of a seed, and hangs up on some of them."""

    http: httpx.AsyncClient
    random: Random = field(default_factory=lambda: Random(7))
    answered: int = 0
    left: int = 0

    async def send(self, number: int, wanted: dict[str, Any], leaves: bool) -> None:
        headers = {"X-Request-Id": f"r{number}"}
        if not leaves:
            response = await self.http.post(PATH, json=wanted, headers=headers)
            assert response.status_code == 200, response.text
            self.answered += 1
            return
        async with self.http.stream("POST", PATH, json=wanted, headers=headers) as response:
            async for _ in response.aiter_bytes():
                break  # after the first token
        self.left += 1

    async def send_all(self) -> None:
        free = asyncio.Semaphore(AT_ONCE)

        async def send(number: int, wanted: dict[str, Any], leaves: bool) -> None:
            async with free:
                await self.send(number, wanted, leaves)

        async with asyncio.TaskGroup() as group:
            for number in range(REQUESTS):
                wanted, leaves = body(self.random), number % 6 == 0
                if leaves:
                    wanted = {"prompt": wanted["prompt"], "n": 1 + number % 4, **HUNG_UP}
                group.create_task(send(number, wanted, leaves))


async def busy(url: str) -> Client:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as http:
        client = Client(http)
        await client.send_all()
        return client


def ended(server: Running) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.ended()[0] == 0


def test_a_served_run_replays_to_the_same_plans(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.paceline"
    recording = {"record": str(path), "record_max_bytes": 140_000, "record_files": 100}
    with running(folder, **TIGHT, **recording) as server:
        client = asyncio.run(busy(str(server.http.base_url)))
        ended(server)
    assert client.answered + client.left == REQUESTS

    files = files_of_run(path)
    assert len(files) > 1, "the run does not fit into one file"
    replay = Replay(*files)
    summary = replay.run()
    assert (replay.divergence, replay.reader.ending) == (None, RecordingEnd.CLOSED)
    assert summary.verified == summary.steps > REQUESTS
    assert summary.requests + summary.refused == REQUESTS  # some can never fit into the pool
    assert summary.preemptions > 10
    assert summary.forks > 10
    calls = [record.kind for file in replay.reader.files for record in type(file)(file.path)]
    assert calls.count(RecordKind.ABORT) > 10

    verified = 0
    for file in files:
        alone = Replay(file)
        verified += alone.run().verified
        assert alone.divergence is None
    assert verified == summary.verified

    assert main(["explain", str(path), "--request", "r7"]) == 0
    assert capsys.readouterr().out.startswith("'r7': ")


def test_a_killed_core_leaves_a_recording_of_its_last_steps(folder: Path, tmp_path: Path) -> None:
    path, older = tmp_path / "run", tmp_path / "run.1"
    with running(folder, record=str(path), core_restarts=1) as server:
        core = server.core
        wanted = {"prompt": "the quick", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", PATH, json=wanted) as response:
            next(response.iter_bytes())
            os.kill(core, signal.SIGKILL)
        server.until("/health", 503)
        server.until("/health", 200)
        server.http.post(PATH, json={"prompt": "fox", "max_tokens": 2}).raise_for_status()
        ended(server)
    assert files_of_run(path) == [path], "the new core begins anew"
    killed = (RecordingEnd.OPEN, RecordingEnd.CUT)
    for file, ends in ((older, killed), (path, (RecordingEnd.CLOSED,))):
        replay = Replay(file)
        summary = replay.run()
        assert summary.requests == 1
        assert summary.steps - summary.verified <= 1, "only the last plan may lack its digest"
        assert replay.divergence is None
        assert replay.reader.ending in ends
