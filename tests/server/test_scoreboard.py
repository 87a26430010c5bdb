"""Figures that several processes share."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paceline.engine.frontend.metrics import Metrics
from paceline.server.scoreboard import Scoreboard, shared_board, shared_memory

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
