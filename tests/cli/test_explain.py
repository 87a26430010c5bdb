"""`paceline explain`: from a server, and from a recording."""

from pathlib import Path

import httpx
import pytest

from paceline.cli.main import main
from tests.cli.test_replay import record
from tests.server.support import Site


def test_a_server_is_asked(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"prompt": "the fox", "max_tokens": 3, "ignore_eos": True}
    headers = {"X-Request-Id": "team/7#a"}
    httpx.post(f"{site.url}/v1/completions", json=body, headers=headers).raise_for_status()
    assert main(["explain", "team/7#a", "--url", site.url]) == 0
    out = capsys.readouterr().out
    assert out.startswith("'team/7#a': ")
    assert "ended (length)" in out


def test_a_request_that_nobody_knows(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "zoe", "--url", f"{site.url}/v1/"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "paceline explain: the server answers with status 404: no request 'zoe'" in said.err


def test_a_recording_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "run").close()
    assert main(["explain", "b", "--recording", str(tmp_path / "run")]) == 0
    assert "for a slot (max_num_seqs)" in capsys.readouterr().out
    for wrong in (["zoe", "--recording", str(tmp_path / "run")], ["b", "--recording", "nowhere"]):
        assert main(["explain", *wrong]) == 1
        assert capsys.readouterr().err.startswith("paceline explain: ")


def test_one_source_at_a_time() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", "b", "--recording", "x", "--url", "y"])
    assert caught.value.code == 2
