"""Addresses and shared sockets of servers, and the list of servers that run."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.server.listen import (
    RunningServer,
    announced,
    bound_sockets,
    check_port,
    check_socket,
    running_servers,
    url_of,
)


def test_a_socket_of_a_server_that_died_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(path))
    check_socket(str(path))
    (tmp_path / "file").touch()
    for wrong, reason in [
        (tmp_path / "file", "not a socket"),
        (tmp_path / "none" / "s.sock", "no folder"),
        (tmp_path / ("x" * 120), "at most 107 bytes"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            check_socket(str(wrong))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1, port 0: [^()]+; choose another --host$"):
        check_port("192.0.2.1", 0)


def test_addresses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert url_of(listener) == f"unix:{tmp_path / 's'}"


def test_bound_sockets_accept_clients_once_a_process_listens() -> None:
    (bound,) = bound_sockets("127.0.0.1", 0)
    with bound, socket.socket(fileno=os.dup(bound.fileno())) as shared:
        address = bound.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        shared.listen()
        socket.create_connection(address).close()
        with pytest.raises(ConfigError, match=r"cannot listen at .*choose another --port$"):
            bound_sockets(*address)


def test_every_address_of_a_host_is_bound() -> None:
    sockets = bound_sockets("localhost", 0)
    families = {one.family for one in sockets}
    for one in sockets:
        one.close()
    assert socket.AF_INET in families
    assert len(families) == len(sockets)


def test_a_bound_unix_socket_replaces_one_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(path))
    path.chmod(0o600)
    for mode in (0o600, 0o666):
        (bound,) = bound_sockets("127.0.0.1", 0, str(path))
        with bound:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert url_of(bound) == f"unix:{path}"
        path.unlink()


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
