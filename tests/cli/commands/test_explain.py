"""`paceline explain`: from a server, and from a recording."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from paceline import Request, StepResult
from paceline.cli.main import main
from paceline.sched.policies.fcfs import Fcfs
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from tests.cli.commands.test_replay import record
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
    assert said.err == (
        "paceline explain: the server answers with status 404: no request 'zoe' is known: "
        "the id is wrong, or it is older than the last 256 finished requests: raise "
        "journal_requests\n"
    )


def test_a_recording_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "run").close()
    assert main(["explain", str(tmp_path / "run"), "--request", "b"]) == 0
    assert "for a slot (max_num_seqs)" in capsys.readouterr().out
    (tmp_path / "other").write_text("hello")
    for name, file, status in (("zoe", "run", 2), ("b", "nowhere", 2), ("b", "other", 2)):
        assert main(["explain", str(tmp_path / file), "--request", name]) == status
        assert capsys.readouterr().err.startswith("paceline explain: ")


def test_the_requests_of_a_recording_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with record(tmp_path / "run") as recorder:
        recorder.submit(Request(id="c", prompt=[1, 2], max_tokens=3), now=9.0)
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "'a': 3 tokens of prompt, at most 2 new; finished: reached max_tokens.",
        "'b': 3 tokens of prompt, at most 2 new; finished: reached max_tokens.",
        "'c': 2 tokens of prompt, at most 3 new; waiting.",
    ]


def test_a_recording_has_requests_that_the_scheduler_has_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "run", journal_requests=1).close()
    for name in "ab":
        assert main(["explain", str(tmp_path / "run"), "--request", name]) == 0
        assert "ended (length) with 5 tokens known." in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_request_that_was_forgotten_at_once_is_listed_and_not_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run")
    with RecordedScheduler.create(record=path, num_blocks=8, journal_requests=1) as recorder:
        for name in "ab":
            recorder.submit(Request(id=name, prompt=[1, 2], max_tokens=1), now=0.0)
        plan = recorder.plan(now=0.0)
        recorder.commit(plan, StepResult.of(plan, {"a": [3], "b": [3]}), now=0.0)
    assert main(["explain", path, "--request", "a"]) == 2
    assert "raise journal_requests" in capsys.readouterr().err
    assert main(["explain", path]) == 0
    assert capsys.readouterr().out.startswith("'a': finished, and not remembered.\n'b': 2 tokens")


def test_a_file_or_a_request_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain"])
    assert caught.value.code == 2
    assert "Missing argument 'FILE_OR_ID'" in capsys.readouterr().err


def test_a_replay_that_diverged_is_no_life_to_rely_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run").close()
    monkeypatch.setattr(Fcfs, "rank", lambda _, sequence: (-sequence.serial,), raising=False)
    assert main(["explain", str(tmp_path / "run"), "--request", "b"]) == 1
    said = capsys.readouterr()
    assert "the replay diverged, step 1: the plans differ in the rows and their tokens" in said.err
    assert said.out.startswith("'b': ")


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        (lambda content: content[:-60] + b"x" + content[-59:], 2, "a record is damaged"),
        (lambda content: content[:-40], 0, "it ends inside a record"),
    ],
)
def test_a_file_that_does_not_end_as_it_should_is_told(
    change: Callable[[bytes], bytes],
    status: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run"
    record(path).close()
    path.write_bytes(change(path.read_bytes()))
    assert main(["explain", str(path), "--request", "b"]) == status
    said = capsys.readouterr()
    assert f"paceline explain: {path}: {told}" in said.err
    assert said.out.startswith("'b': ")


@pytest.mark.parametrize("other", [["--request", "b"], ["--alone"]])
def test_one_source_at_a_time(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", "x", "--url", "y", *other])
    assert caught.value.code == 2
    assert "--request and --alone go with a file" in capsys.readouterr().err


def test_a_name_that_is_neither_a_file_nor_known_to_a_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.commands.explain.DEFAULT_URL", "http://127.0.0.1:9")
    assert main(["explain", "run.paceline"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "paceline explain: no file 'run.paceline' exists, and http://127.0.0.1:9 does not answer"
    )


def test_a_request_with_the_name_of_a_file_is_looked_up_at_a_server(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record(Path("zoe")).close()
    assert main(["explain", "zoe"]) == 0
    assert main(["explain", "zoe", "--url", site.url]) == 1
    assert "no request 'zoe' is known" in capsys.readouterr().err
