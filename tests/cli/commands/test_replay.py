"""`paceline replay` says what it found, and exits accordingly."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Request, RequestError, StepResult
from paceline.cli.commands import replay
from paceline.cli.main import main
from paceline.sched.replay.reader import Reader
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.testing.oracle import OracleRunner
from tests.engine.trace.timeline import Timeline

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "replay.md"
IDENTICAL, DIVERGED, UNREADABLE = 0, 1, 2


def record(path: Path, **recording: Any) -> RecordedScheduler:
    """Two requests on one slot, one of them refused at first."""
    recorder = RecordedScheduler.create(
        max_num_seqs=1,
        max_model_len=16,
        num_blocks=4,
        block_size=4,
        record=str(path),
        **recording,
    )
    with pytest.raises(RequestError):
        recorder.submit(Request(id="long", prompt=np.arange(16)), now=0.0)
    for name in "ab":
        recorder.submit(Request(id=name, prompt=np.arange(3), max_tokens=2), now=0.0)
    for step in range(5):
        plan = recorder.plan(now=1.0 + step)
        tokens = {str(name): [9] for name in plan.rows.request_id}
        recorder.commit(plan, StepResult.of(plan, tokens), now=1.5 + step)
    return recorder


def record_old_ways(path: Path, **settings: Any) -> RecordedScheduler:
    """Samples and beams on a pool that is too small for them, with a host to swap to."""
    recorder = RecordedScheduler.create(
        record=str(path),
        max_num_seqs=6,
        max_model_len=32,
        num_blocks=12,
        block_size=4,
        preemption_mode="swap",
        swap_space=30,
        **settings,
    )
    runner = OracleRunner(blocks=12, block_size=4, vocab=50, host_blocks=30)
    requests = [
        Request(id="plain", prompt=np.arange(11), max_tokens=12),
        Request(id="samples", prompt=np.arange(20, 27), max_tokens=8, n=2),
        Request(id="best", prompt=np.arange(40, 46), max_tokens=6, best_of=2),
        Request(id="beams", prompt=np.arange(30, 36), max_tokens=6, beam_width=2),
    ]
    for request in requests:
        recorder.submit(request, now=0.0)
    while not recorder.idle:
        plan = recorder.plan(now=0.0)
        recorder.commit(plan, runner.run(plan), now=0.0)
    return recorder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with record(tmp_path / "run") as recorder:
        return recorder.recording.path


def run(*words: object) -> int:
    return main(["replay", *map(str, words)])


def test_an_identical_run_is_summed_up(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path) == IDENTICAL
    said = capsys.readouterr()
    first, *rest = said.out.splitlines()
    assert first.startswith(f"file      {path}, {path.stat().st_size:,} bytes, made by paceline")
    assert rest == [
        "replayed  5 steps, 2 requests, 4 tokens, 0 preemptions, 1 call refused",
        "verified  all 5 plans identical",
    ]
    assert said.err == ""


@pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
def test_families_and_swaps_replay(
    discipline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with record_old_ways(tmp_path / "run", discipline=discipline) as recorder:
        stats = recorder.stats
    assert min(stats.swapped_out_blocks, stats.forks, stats.copied_blocks) > 0
    assert run(tmp_path / "run", "--json", "--explain", "beams") == IDENTICAL
    said = capsys.readouterr()
    plans = [json.loads(line) for line in said.out.splitlines()]
    assert sum(len(plan["swap_out"]) for plan in plans) == stats.swapped_out_blocks
    assert any("1_beams" in plan["tokens"] for plan in plans)
    assert f"{stats.swapped_out_blocks} blocks swapped out, {stats.forks} forks" in said.err
    assert f"verified  all {stats.steps} plans identical" in said.err
    assert "forked into 2 sequences that share the prompt." in said.err


def test_explain_tells_the_life_of_a_request(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(path, "--explain", "b") == IDENTICAL
    out = capsys.readouterr().out
    assert "'b': 3 tokens of prompt" in out
    assert "for a slot (max_num_seqs)" in out


def test_until_shows_an_earlier_state(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--until", 2, "--explain", "b") == IDENTICAL
    out = capsys.readouterr().out
    assert "replayed  2 steps" in out
    assert "; waiting." in out
    assert "ends " not in out


def test_until_beyond_the_end_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--until", 50) == IDENTICAL
    assert "ends      before step 50" in capsys.readouterr().out


def test_json_prints_plans_and_nothing_else(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--json", "--explain", "a") == IDENTICAL
    said = capsys.readouterr()
    plans = [json.loads(line) for line in said.out.splitlines()]
    assert [plan["step"] for plan in plans] == [1, 2, 3, 4, 5]
    assert plans[0]["tokens"] == {"a": 3}
    assert "verified  all 5 plans identical" in said.err
    assert "'a': 3 tokens of prompt" in said.err


def test_a_reader_that_went_away_is_left_to_the_caller(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", closed)
    with pytest.raises(BrokenPipeError):
        replay.run(replay.ReplayOptions(path, json=True))


def test_an_unknown_request_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--explain", "zoe") == UNREADABLE
    assert (
        f"paceline replay: {path} has no request 'zoe'; `paceline explain {path}` lists"
        in capsys.readouterr().err
    )
    assert run(path, "--explain", "zoe", "--until", "1") == UNREADABLE
    assert "has no request 'zoe' up to step 1; " in capsys.readouterr().err


def test_a_difference_is_told(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "paceline.sched.policies.fcfs.Fcfs.rank",
        lambda _, sequence: (-sequence.serial,),
        raising=False,
    )
    assert run(path) == DIVERGED
    out = capsys.readouterr().out
    assert "diverged  step 1: the plans differ in the rows and their tokens" in out
    assert "verified" not in out


def test_a_torn_tail_is_told_and_forgiven(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    assert run(path) == IDENTICAL
    out = capsys.readouterr().out
    assert "ends      it ends inside a record" in out
    assert "bytes were not read)" in out
    assert "plans identical" in out


def test_a_plan_without_a_digest_is_told(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = record(tmp_path / "open")
    recorder.plan(now=9.0)
    assert run(recorder.recording.path) == IDENTICAL
    out = capsys.readouterr().out
    assert "ends      it has no end" in out
    assert "verified  5 plans identical, 1 without a digest" in out
    recorder.close()


def test_a_full_recording_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.core.settings.features.LEAST_RECORD_BYTES", 1)
    with record(tmp_path / "run") as recorder:
        size = recorder.recording.size_bytes
    record(tmp_path / "run", record_max_bytes=size, record_files=1).close()
    assert run(tmp_path / "run") == IDENTICAL
    assert "ends      it was full, and the run went on unrecorded" in capsys.readouterr().out


def test_damage_is_an_unreadable_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(content)
    assert run(path) == UNREADABLE
    assert "a record is damaged" in capsys.readouterr().out


def test_a_damaged_length_is_damage_and_no_cut(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(path.read_bytes())
    content[Reader(path).read_bytes + 3] = 1  # the first call says to be 16 MiB long
    path.write_bytes(content)
    assert run(path) == UNREADABLE
    assert "a record is damaged" in capsys.readouterr().out


def record_two_files(path: Path) -> None:
    """Five steps in the older file, three in the newer one."""
    with record(path) as recorder:
        recorder.recording.next_file()
        recorder.submit(Request(id="c", prompt=np.arange(3), max_tokens=2), now=9.0)
        for step in range(3):
            plan = recorder.plan(now=9.0 + step)
            tokens = {str(name): [9] for name in plan.rows.request_id}
            recorder.commit(plan, StepResult.of(plan, tokens), now=9.5 + step)


def test_the_files_of_a_run_replay_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    record_two_files(path)
    assert run(path) == IDENTICAL
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines[:2]] == [
        f"file      {path}.1",
        f"file      {path}",
    ]
    assert lines[2:] == [
        "replayed  8 steps, 3 requests, 6 tokens, 0 preemptions, 1 call refused",
        "verified  all 8 plans identical",
    ]


def test_a_newest_file_that_ends_in_its_beginning_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    record_two_files(path)
    path.write_bytes(path.read_bytes()[:5000])
    assert run(path) == IDENTICAL
    said = capsys.readouterr()
    assert said.err == (
        f"paceline replay: {path} ends inside its checkpoint: nothing in it can be replayed; "
        "it is left out\n"
    )
    assert "verified  all 5 plans identical" in said.out
    assert run(path, "--alone") == UNREADABLE
    (tmp_path / "run.1").unlink()
    assert run(path) == UNREADABLE


def test_an_older_file_that_is_damaged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, older = tmp_path / "run", tmp_path / "run.1"
    record_two_files(path)
    content = bytearray(older.read_bytes())
    content[-100] ^= 1
    older.write_bytes(content)
    assert run(path) == UNREADABLE
    assert f"ends      {older}: a record is damaged" in capsys.readouterr().out
    assert run(path, "--alone") == IDENTICAL


def test_a_file_that_continues_another_replays_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    record_two_files(path)
    assert run(path, "--alone", "--explain", "b", "--until", 7) == IDENTICAL
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        "begins    after step 5, where an older file ends",
        "replayed  2 steps, 1 request, 1 token, 0 preemptions",
        "verified  all 2 plans identical",
    ]
    assert lines[4].startswith("'b': 3 tokens of prompt")
    assert run(tmp_path / "run.1") == IDENTICAL
    out = capsys.readouterr().out
    assert "ends      it was full, and the recording goes on in a newer file" in out
    assert "verified  all 5 plans identical" in out


@pytest.mark.parametrize("step", [0, -5])
def test_steps_to_stop_at_are_numbered_from_1(
    step: int, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(path, "--until", step)
    assert caught.value.code == 2
    assert "--until" in capsys.readouterr().err


def test_the_guide_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    recording = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"\$ paceline (replay .*?)\n(.*?)```", text, re.DOTALL)
    assert recording is not None
    assert shown is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(recording[1], str(GUIDE), "exec"), {})
    assert main(shown[1].split()) == IDENTICAL
    assert re.sub("[0-9,]+ bytes", "… bytes", capsys.readouterr().out) == shown[2]


def test_no_recording_is_an_unreadable_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("hello")
    assert run(tmp_path / "other") == UNREADABLE
    assert run(tmp_path / "missing") == UNREADABLE
    assert run(tmp_path) == UNREADABLE
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.startswith("paceline replay: ") for line in said.err.splitlines()] == [True] * 3


def test_a_timeline_has_the_times_of_the_recording(tmp_path: Path) -> None:
    record(tmp_path / "run.paceline").close()
    out = tmp_path / "trace.json"
    assert main(["replay", str(tmp_path / "run.paceline"), "--trace", str(out)]) == IDENTICAL
    found = Timeline(out)
    assert [*found.processes.values()] == ["recorded in run.paceline"]
    (steps,) = found.tracks().values()  # what the host did is not known
    assert [one["name"] for one in steps] == [f"step {number}" for number in range(1, 5)]
    assert [one["ts"] for one in steps] == [1e6, 2e6, 3e6, 4e6]
    assert {one["dur"] for one in steps} == {5e5}
    assert found.spans("request").keys() == {"a", "b"}


def test_a_timeline_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "run.paceline").close()
    out = str(tmp_path / "missing" / "trace.json")
    assert main(["replay", str(tmp_path / "run.paceline"), "--trace", out]) == UNREADABLE
    assert "missing" in capsys.readouterr().err
