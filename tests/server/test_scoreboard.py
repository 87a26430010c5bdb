"""Figures that processes share: ids, rates, and the load in a header."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.engine.frontend.metrics import Metrics
from paceline.server.scoreboard import (
    LONGEST_WAIT_S,
    REMEMBERED_ENDS,
    REMEMBERED_IDS,
    LoadReport,
    RecentIds,
    RequestRate,
    Scoreboard,
    shared_board,
    shared_memory,
)
from tests.server.conftest import Play
from tests.server.support import Site

PROGRAM = """
import sys
from paceline.server.scoreboard import shared_board
board = shared_board(int(sys.argv[1]), 1, 2)
board.set_requests(4)
board.set_connections(9)
for one in board.own_metrics:
    one.cells += 3
"""


def test_another_process_writes_a_row_that_this_one_reads() -> None:
    file = shared_memory(3, engines=2)
    owner, first = shared_board(file, -1, 2), shared_board(file, 0, 2)
    first.set_requests(2)
    first.set_connections(1)
    for _ in range(2):  # the second one continues the counters of the first
        subprocess.run([sys.executable, "-c", PROGRAM, str(file)], pass_fds=[file], check=True)
    assert (owner.requests, first.connections_elsewhere) == (6, 9)
    assert owner.metrics.sum(axis=2).tolist() == [[0, 0], [6 * Metrics.SIZE] * 2, [0, 0]]
    pids = first.processes
    assert pids[""] == pids["paceline_front_end_0"] == os.getpid()
    assert len(set(pids.values())) == 2
    owner.clear_gauges(1)
    assert (owner.requests, first.connections_elsewhere) == (2, 0)
    assert owner.metrics.sum() == 12 * Metrics.SIZE
    assert "paceline_front_end_1" not in first.processes
    os.close(file)


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_shared_memory_needs_no_room_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    file = shared_memory(2)
    assert shared_board(file, 0).requests == 0
    os.close(file)


def test_the_latest_failure_of_all_processes_counts() -> None:
    file = shared_memory(2)
    boards = [shared_board(file, row) for row in range(2)]
    os.close(file)
    assert boards[0].last_failure_s is None
    boards[0].set_failure(None)
    boards[0].set_failure(50.0)
    boards[1].set_failure(20.0)
    assert boards[0].last_failure_s == pytest.approx(20.0, abs=1.0)


def test_a_process_knows_how_far_it_is_ahead_of_others_that_accept() -> None:
    file = shared_memory(4)
    boards = [shared_board(file, row) for row in range(4)]
    os.close(file)
    assert boards[0].connections_ahead == 0
    for board, connections in zip(boards, (5, 3, 4), strict=False):
        board.set_connections(connections)
        board.set_accepting(True)
    assert [board.connections_ahead for board in boards[:3]] == [2, 0, 1]
    boards[1].set_accepting(False)
    assert [boards[row].connections_ahead for row in (0, 2)] == [1, 0]


def test_one_process_alone_has_a_row_to_itself() -> None:
    board = Scoreboard()
    board.set_requests(3)
    board.set_connections(2)
    board.set_accepting(True)
    assert (board.requests, board.connections_elsewhere, board.is_shared) == (3, 0, False)
    assert board.connections_ahead == 0
    assert board.processes == {"": os.getpid()}


TALK = [{"role": "user", "content": "hello"}]
NAMES = ["kv_cache_usage_perc", "num_requests_waiting"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": TALK}),
        ("/v1/completions", {"prompt": "the"}),
        ("/v1/responses", {"input": "the"}),
    ],
)
def test_an_answer_has_the_load_if_it_is_asked_for(
    on: Play, path: str, body: dict[str, Any], stream: bool
) -> None:
    async def scenario(site: Site) -> None:
        async def load(kind: str) -> str | None:
            headers = {"endpoint-load-metrics-format": kind}
            sent = {**body, "max_tokens": 2, "stream": stream}
            response = await site.http.post(path, json=sent, headers=headers)
            assert response.status_code == 200
            return response.headers.get("endpoint-load-metrics")

        kind, _, report = (await load("json") or "").partition(" ")
        assert kind == "JSON"
        named = json.loads(report)["named_metrics"]
        assert list(named) == NAMES
        assert all(isinstance(value, float) for value in named.values())
        kind, _, report = (await load("TEXT") or "").partition(" ")
        assert kind == "TEXT"
        assert [one.partition("=")[0] for one in report.split(", ")] == [
            f"named_metrics.{name}" for name in NAMES
        ]
        assert await load("BINARY") is None

    on(scenario)


def test_requests_at_the_same_time_ask_the_engine_once() -> None:
    asked = 0

    async def reports() -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        engines = (
            {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3},
            {"kv_cache_usage_perc": 0.75, "num_requests_waiting": 0},
        )
        return [SimpleNamespace(gauges=one) for one in engines]

    async def play() -> None:
        report = LoadReport(reports)
        found = await asyncio.gather(*(report.header("TEXT") for _ in range(5)))
        expected = b"TEXT named_metrics.kv_cache_usage_perc=0.5, "
        assert found == [expected + b"named_metrics.num_requests_waiting=3.0"] * 5

    asyncio.run(play())
    assert asked == 1


def test_an_id_of_another_process_is_taken_for_a_while() -> None:
    rows = np.zeros((3, RecentIds.SIZE))
    first, second = RecentIds(rows, 0), RecentIds(rows, 1)
    assert first.claim("a")
    assert first.claim("a"), "a process knows its own ids by itself"
    assert not second.claim("a")
    assert not first.claim("a"), "now the other one has it too"
    for number in range(REMEMBERED_IDS):
        assert first.claim(f"{number}")
    assert RecentIds(rows, 2).claim("b")
    for number in range(REMEMBERED_IDS):
        second.claim(f"other {number}")
    assert first.claim("a")


def test_one_process_alone_needs_no_table() -> None:
    rows = np.zeros((1, RecentIds.SIZE))
    assert RecentIds(rows, 0).claim("a")
    assert not rows.any()


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_is_what_the_queue_takes_at_the_pace_of_late() -> None:
    clock = Clock()
    rate = RequestRate(clock)
    assert rate.wait_s(1000) == 1
    for _ in range(10):
        rate.ended()
        clock.now += 0.5
    assert rate.wait_s(20) == 10
    assert rate.wait_s(0) == 1
    assert rate.wait_s(100_000) == LONGEST_WAIT_S
    clock.now += 45.0  # nothing ends any more, so it takes ten times as long
    assert rate.wait_s(10) == 50


def test_only_the_latest_ends_count() -> None:
    clock = Clock()
    rate = RequestRate(clock)
    rate.ended()
    clock.now += 1000.0
    for _ in range(REMEMBERED_ENDS):
        rate.ended()
        clock.now += 0.1
    assert rate.wait_s(100) == 10


def test_ends_of_all_processes_count() -> None:
    clock, rows = Clock(), np.zeros((3, RequestRate.SIZE))
    rates = [RequestRate(clock, rows, row) for row in range(3)]
    for at in range(3 * REMEMBERED_ENDS):
        rates[at % 2].ended()
        clock.now += 0.1
    assert [rate.wait_s(100) for rate in rates] == [10, 10, 10]
