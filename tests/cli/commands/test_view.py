"""`paceline view`: a recording in the live page."""

import re
from pathlib import Path
from queue import SimpleQueue
from socket import socket
from threading import Thread

import httpx
import pytest

from paceline.cli.main import main
from paceline.viewer import page as view_server
from tests.cli.commands.test_replay import record

UNREADABLE = 2


def test_a_file_that_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello")
    assert main(["view", str(tmp_path / "text"), "--port", "0"]) == UNREADABLE
    assert "is not a recording" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "none"), "--port", "0"]) == UNREADABLE
    assert "No such file" in capsys.readouterr().err


def test_a_recording_is_served_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = SimpleQueue[view_server.ViewServer]()

    class Reported(view_server.ViewServer):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            started.put(self)

    monkeypatch.setattr(view_server, "ViewServer", Reported)
    with record(tmp_path / "run") as recorder:
        path = recorder.recording.path
    running = Thread(target=main, args=[["view", str(path), "--port", "0"]])
    running.start()
    server = started.get(timeout=60)
    address = re.match(r"(http://127.0.0.1:\d+)/dashboard ", capsys.readouterr().out)
    assert address
    with httpx.Client(base_url=address[1], timeout=60) as http:
        events = http.get("/dashboard/events").text
        start, *frames, _ = events.split("\n\n")
        assert '"recording":"run"' in start
        assert frames
        assert all(one.startswith("event: frame\n") for one in frames)
        assert http.get("/dashboard/requests/a").json()["state"] == "FINISHED_LENGTH"
        assert http.get("/dashboard/requests/z").status_code == 404
    server.should_exit = True
    running.join(60)
    assert not running.is_alive()
