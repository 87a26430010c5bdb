"""`paceline ps`: running servers as a table and as JSON."""

import json
import os
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.server.listen import RunningServer, announced


def test_servers_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert main(["ps"]) == 0
    assert capsys.readouterr().out.startswith("no servers on this machine")
    with announced(RunningServer.here("short", "owner/long", "http://127.0.0.1:8000")):
        assert main(["ps"]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.split() == ["NAME", "ADDRESS", "PID", "SINCE", "MODEL"]
        name, url, pid, _day, _time, model = row.split()
        assert (name, url, pid, model) == (
            "short",
            "http://127.0.0.1:8000",
            str(os.getpid()),
            "owner/long",
        )
        assert row.index(model) == head.index("MODEL")
        assert main(["ps", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["pid"] == os.getpid()
