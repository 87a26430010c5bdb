"""The list of servers: who is on it, and what a killed process leaves."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.server.listen import RunningServer, announced, running_servers

HOLDS = """
import sys
from paceline.server.listen import RunningServer, announced

with announced(RunningServer.here("other", "models/other", "http://127.0.0.1:9")):
    print("listed", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return tmp_path / "servers"


def test_a_server_is_listed_while_it_runs(cache: Path) -> None:
    assert running_servers() == []
    server = RunningServer.here("small", "models/small", "http://127.0.0.1:8000")
    assert server.pid == os.getpid()
    with announced(server):
        assert running_servers() == [server]
    assert running_servers() == []
    assert list(cache.iterdir()) == []


def test_a_killed_server_is_removed_from_the_list(cache: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listed\n"
        (found,) = running_servers()
        assert (found.name, found.model, found.pid) == ("other", "models/other", process.pid)
        process.send_signal(signal.SIGKILL)
    assert running_servers() == []
    assert list(cache.iterdir()) == []


def test_servers_of_other_machines_and_damaged_files_are_left_out(cache: Path) -> None:
    cache.mkdir()
    (cache / "elsewhere-1.json").write_text("{}")
    (cache / f"{socket.gethostname()}-1.json").write_text("damaged")
    assert running_servers() == []
    assert [file.name for file in cache.iterdir()] == ["elsewhere-1.json"]
