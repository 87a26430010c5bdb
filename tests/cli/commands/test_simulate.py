"""`paceline simulate`, `compare` and `capacity`."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.request import Request
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.simulator.server import SimulatedServer
from paceline.testing.loop import Loop
from paceline.testing.oracle import OracleRunner
from paceline.testing.runner import SimulatedDevice
from tests.simulator.support import SMALL, VALUES

WRONG = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile, a trace, a wrong trace, and a recording in which one tenant is greedy."""
    folder = tmp_path_factory.mktemp("simulate")
    (folder / "small.json").write_text(json.dumps(VALUES))
    rows = [
        {"at_s": n / 20, "input_len": 20 + n, "output_len": 8, "tenant": "ab"[n % 2]}
        for n in range(20)
    ]
    (folder / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "wrong.jsonl").write_text(json.dumps(rows[0]) + '\n{"at_s": 1}\n')
    requests = [
        Request(id=f"r{n}", prompt=range(n, n + 30), max_tokens=9, tenant="ab"[n == 9], arrival=0.0)
        for n in range(10)
    ]
    record = str(folder / "run.paceline")
    with RecordedScheduler.create(**SMALL, record=record) as scheduler:
        oracle = OracleRunner(SMALL["num_blocks"], SMALL["block_size"], 1000)
        for _ in Loop(scheduler, SimulatedDevice(oracle.run)).run(requests):
            pass
    return folder


def called(folder: Path, command: str, *arguments: str) -> int:
    try:
        return main([command, "--profile", str(folder / "small.json"), *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_a_trace_is_reported_in_every_form(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, html = tmp_path / "out.json", tmp_path / "out.html"
    trace, files = str(folder / "trace.jsonl"), ["--output", str(output), "--html", str(html)]
    targets = ["--goodput", "ttft:100", "--policy", "fair", "--explain", "7"]
    assert called(folder, "simulate", trace, *files, *targets) == 0
    said = capsys.readouterr().out
    for expected in (
        *("trace.jsonl on a small device", "are estimated, not measured", "20 of 20 completed"),
        *("within ttft 100 ms", "requests per second", "'7': 27 tokens of prompt"),
    ):
        assert expected in said
    found: dict[str, Any] = json.loads(output.read_text())
    assert (found["completed"], found["settings"]["policy"]) == (20, "fair")
    assert list(found["tenants"]) == ["a", "b"]
    assert "<svg" in html.read_text()


def test_synthetic_loads_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "2:5,20:1", "--num-requests", "10", "--turns", "2", "--think", "0.5"]
    lengths = ["--input-len", "lognormal:20:0.5", "--output-len", "3-9", "--prefix-len", "8"]
    assert called(folder, "simulate", *load, *lengths, "--tenants", "x=2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["completed"] == 20
    assert found["hit_rate"] > 0


def test_a_recording_goes_straight_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would `fair` have done to yesterday?"""
    arguments = ["--policies", "fcfs,fair", "--explain", "r9", "--jobs", "1"]
    assert called(folder, "compare", str(folder / "run.paceline"), *arguments) == 0
    said = capsys.readouterr().out
    for expected in (
        *("fair instead of fcfs: sooner first tokens for tenant b", "r9 under fcfs:"),
        *("r9 under fair:", "seconds end to end", "gains", "recorded:"),
        "the profile is of another device or model",
    ):
        assert expected in said


def test_a_part_of_a_recording_goes_in(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "cut.paceline"
    part.write_bytes((folder / "run.paceline").read_bytes()[:-20])
    assert called(folder, "simulate", str(part), "--num-requests", "3") == 0
    said = capsys.readouterr().out
    assert "3 of 3 completed" in said
    assert "The recording is not complete: it ends inside a record" in said


def test_requests_that_do_not_complete_have_no_mean(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--policies", "fcfs", "--timeout", "0.3", "--jobs", "1"]
    assert called(folder, "compare", str(folder / "run.paceline"), *arguments) == 0
    said = capsys.readouterr().out
    assert "over 4 requests that completed" in said
    assert " 4 of 10 " in said
    assert "nan" not in said


def test_a_matrix_of_policies_and_settings(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "compared.html"
    trace = str(folder / "trace.jsonl")
    matrix = ["--policies", "fcfs,shortest", "--settings", "max_num_seqs=2", "--settings"]
    rest = ["max_num_seqs=4,watermark=0.1", "--jobs", "1", "--json", "--html", str(html)]
    assert called(folder, "compare", trace, *matrix, *rest) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["variants"])[-1] == "shortest max_num_seqs=4 watermark=0.1"
    assert len(found["sentences"]) == 3
    assert html.read_text().count("<circle") == 4
    assert "<p>trace.jsonl on a small device with a small model.</p>" in html.read_text()
    assert (found["kind"], found["profile"]) == ("compare", "small")


def test_drafts_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How much do three drafts gain?"""
    trace, drafts = str(folder / "trace.jsonl"), ["--acceptance", "0.7", "--draft-ms", "0.1"]
    variants = ["num_speculative_tokens=0", "num_speculative_tokens=3,speculation=fixed"]
    given = [word for one in variants for word in ("--settings", one)]
    rest = ["--policies", "fcfs", "--jobs", "1"]
    assert called(folder, "compare", trace, *drafts, *given, *rest) == 0
    said = capsys.readouterr().out
    assert "Each draft is right with a chance of 0.7." in said
    assert "drafts" in said  # a column
    assert re.search(r", and \d[.\d]+ instead of \d[.\d]+ ms per output token", said)
    own = ["--set", "num_speculative_tokens=3", "--set", "speculation=fixed"]
    assert called(folder, "simulate", trace, *drafts, *own, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drafting"] == {"acceptance": 0.7, "draft_s": 0.0001, "seed": 0}
    assert 1.5 < found["tokens_per_step"] < 2.5
    assert 0.4 < found["acceptance"] < 0.7
    assert called(folder, "simulate", trace, *drafts, *own) == 0
    assert re.search(r"drafts +\d+ of \d+ accepted \(", capsys.readouterr().out)


def test_long_names_of_variants_are_numbered(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--settings", "max_num_seqs=4,watermark=0.1", "--num-requests", "4", "--jobs", "1"]
    trace = str(folder / "trace.jsonl")
    assert called(folder, "compare", trace, "--policies", "fcfs,fair", *settings) == 0
    said = capsys.readouterr().out
    assert " 2  fair max_num_seqs=4 watermark=0.1\n" in said
    assert re.search(r"^ +2 +4 ", said, re.MULTILINE)
    assert re.search(r"^ +# +done ", said, re.MULTILINE)


def test_capacity(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--ttft-p99", "0.3", "--itl-p99", "0.2", "--jobs", "1"]
    assert called(folder, "capacity", str(folder / "trace.jsonl"), *limits) == 0
    said = capsys.readouterr().out
    assert "One replica holds" in said
    assert "and needs " in said
    assert "too short" not in said


def test_limits_that_no_rate_keeps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If requests break them alone, no number of replicas is tried."""
    monkeypatch.setattr("paceline.cli.commands.capacity.replicas_needed", None)
    limit = [str(folder / "trace.jsonl"), "--num-requests", "4", "--ttft-p99", "0.001"]
    limit += ["--jobs", "1"]
    assert called(folder, "capacity", *limit) == 1
    assert "also if requests run alone: more replicas do not help." in capsys.readouterr().out
    assert called(folder, "capacity", *limit, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["profile"], found["limits"]["p99_s"]) == ("small", {"ttft": 0.001})
    assert found["rate"]["best"] is found["replicas"] is None


def test_a_burst_does_not_tell_which_rate_lasts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(folder / "trace.jsonl")
    assert called(folder, "capacity", trace, "--ttft-p99", "60", "--no-replicas") == 0
    said = capsys.readouterr().out
    assert re.search(r"One replica holds at least [\d.]+ requests/s, ", said)
    assert re.search(r"too short to tell how many more: .* its 20 requests come within 0\.\d", said)


def test_bursts_that_break_the_limits_are_named(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight requests at once every ten seconds: one by one, they would be no burden."""
    rows = [{"at_s": 10 * (n // 8), "input_len": 60, "output_len": 8} for n in range(32)]
    trace = tmp_path / "bursts.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    limits = ["--ttft-p99", "0.3", "--jobs", "1"]
    assert called(folder, "capacity", str(trace), *limits) == 1
    said = capsys.readouterr().out
    assert "No rate keeps the limits." in said
    found = re.search(r"up to 8 requests .* one replica would hold (?:at least )?([\d.]+) re", said)
    assert found is not None
    assert float(found[1]) > 2
    assert "and needs " in said
    assert called(folder, "capacity", str(trace), *limits, "--no-replicas", "--json") == 1
    record = json.loads(capsys.readouterr().out)["rate"]
    assert record["best"] is None
    assert record["evenly"]["best"]["tried"] == pytest.approx(float(found[1]), rel=0.01)


@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["compare", "--policies", "fcfs", "--jobs", "1"],
        ["capacity", "--ttft-p99", "9", "--no-replicas", "--jobs", "1"],
    ],
)
def test_doubts_about_a_profile_are_repeated(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"decode_mean": 0.38, "mixed_mean": 0.1}
    own = {"source": "measured", "error": error, "processor": "Abacus", "architecture": "beads"}
    (tmp_path / "small.json").write_text(json.dumps(VALUES | own))
    command, *rest = [*words, "--num-requests", "5"]
    assert called(tmp_path, command, *rest) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "WARNING: this profile is 38 % (decode steps) off on steps that its fit did" in said
    assert "WARNING: this profile is of another kind of CPU than this machine has: Abacus" in said
    assert called(tmp_path, command, *rest, "--json") == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert len(found["warnings"]) == 2
    assert found["profile_error"] == error
    assert told.err.count("WARNING") == 2


def test_several_replicas(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = str(folder / "trace.jsonl"), tmp_path / "report.html"
    assert called(folder, "simulate", trace, "--replicas", "2", "--html", str(page)) == 0
    said = capsys.readouterr().out
    assert "2 replicas; the router is prefix." in said
    assert re.search(r"^ +1 +\d+ ", said, re.MULTILINE)
    assert "<h2>Replicas</h2>" in page.read_text()
    assert "follows another" not in said
    assert called(folder, "simulate", trace, "--replicas", "2", "--router", "sessions") == 0
    assert "the router sessions does the same as turns" in capsys.readouterr().out
    more = ["--replicas", "2", "--router", "turns", "--json"]
    assert called(folder, "simulate", trace, *more) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["router"] == "turns"
    assert [one["requests"] for one in found["replicas"]] == [10, 10]


def never(_: SimulatedServer) -> None:
    raise AssertionError("a simulation ran")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["simulate", "wrong.jsonl"], "wrong.jsonl: line 2: no field"),
        (["simulate", "none.csv"], "none.csv: cannot be read"),
        (["simulate", "trace.jsonl", "--policy", "best"], "no policy 'best': there are"),
        (["simulate", "trace.jsonl", "--set", "max_num_seq=1"], "did you mean 'max_num_seqs'?"),
        (["simulate", "trace.jsonl", "--explain", "x"], "no request 'x' in trace.jsonl"),
        (["simulate", "--rate", "fast"], "'fast' is no rate"),
        (["simulate", "--input-len", "x"], "'x' is no length"),
        (["simulate", "--turns", "2", "--think", "inf"], "--think must be finite"),
        (["simulate", "--think", "3"], "--think is between turns, and there is one"),
        (["simulate", "--num-prefixes", "3"], "--num-prefixes needs --prefix-len"),
        (["simulate", "--tenants", "a=x"], "is not NAME or NAME=SHARE"),
        (["simulate", "--tenants", "a=inf"], "needs a name and a positive, finite share"),
        (["simulate", "--goodput", "x:1"], "no target 'x'"),
        (["simulate", "--tenants", "a", "--tenants", "a=2"], "--tenants has 'a' twice"),
        (["simulate", "trace.jsonl", "--rate", "3"], "--rate is for synthetic loads, and the"),
        (["simulate", "--max-input-len", "9"], "--max-input-len changes a trace, and none is"),
        (
            ["simulate", "trace.jsonl", "--replicas", "0"],
            "'0' should be greater than or equal to 1",
        ),
        (["simulate", "trace.jsonl", "--router", "load"], "there is one; give --replicas"),
        (
            ["simulate", "trace.jsonl", "--replicas", "2", "--router", "x"],
            "no router 'x': there are prefix, load, sessions, turns",
        ),
        (["compare", "trace.jsonl", "--policies", "fcfs,x"], "no policy 'x'"),
        (["compare", "trace.jsonl", "--policies", "fair,fair"], "'fair' is to be compared with"),
        (["compare", "trace.jsonl", "--settings", "policy=fair"], "name policies with --policies"),
        (["compare", "trace.jsonl", "--set", "policy=fair"], "name policies with --policies"),
        (["compare", "wrong.jsonl"], "wrong.jsonl: line 2: no field"),
        (
            ["simulate", "--set", "num_speculative_tokens=3"],
            "num_speculative_tokens is 3, but it is not known how many drafts are right; give",
        ),
        (["simulate", "--acceptance", "0.7"], "--acceptance needs drafts, such as --set num_spec"),
        (["compare", "trace.jsonl", "--acceptance", "0.7"], "--acceptance needs drafts, such as"),
        (["capacity", "--ttft-p99", "1", "--acceptance", "0"], "--acceptance needs drafts, such"),
        (["simulate", "--acceptance", "2"], "--acceptance"),
        (
            ["simulate", "--acceptance", "1", "--draft-ms", "inf"],
            "draft_s is inf; it must be finite",
        ),
        (["simulate", "--draft-ms", "2"], "--draft-ms needs --acceptance"),
        (
            ["compare", "trace.jsonl", "--explain", "x"],
            "no request 'x' in trace.jsonl, which has 0",
        ),
        (["capacity", "trace.jsonl"], "--ttft-p99 0.5"),
        (["capacity", "trace.jsonl", "--ttft-p99", "inf"], "inf; it must be positive and finite"),
        (
            ["capacity", "trace.jsonl", "--ttft-p99", "1", "--no-replicas", "--router", "load"],
            "--router has no effect with --no-replicas",
        ),
    ],
)
def test_wrong_arguments(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(SimulatedServer, "run", never)  # mistakes are found before any simulation
    command, *rest = arguments
    assert called(folder, command, *rest) == WRONG
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_nothing_that_can_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(folder / "trace.jsonl")
    assert called(folder, "simulate", trace, "--set", "max_model_len=10") == 1
    said = capsys.readouterr().out
    assert "first impossible  0: " in said
    assert "time to first token" not in said, "there are no latencies"
    assert "0 of 10" in said, "of each tenant"


@pytest.mark.parametrize("more", [[], ["--replicas", "2"]])
def test_a_refusal_is_explained(
    folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, short = str(folder / "trace.jsonl"), ["--set", "max_model_len=38", "--explain", "19"]
    assert called(folder, "simulate", trace, *short, *more) == 0
    assert "\n'19': refused: " in capsys.readouterr().out


# -- the guides -------------------------------------------------------------

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
BASH = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Each command of the guides that simulates."""
    found: list[list[str]] = []
    for page in ("plan-capacity.md", "compare-policies.md"):
        for block in BASH.findall((GUIDES / page).read_text(encoding="utf-8")):
            lines = block.replace("\\\n", " ").splitlines()
            words = [shlex.split(line, comments=True)[1:] for line in lines]
            found += [one for one in words if one[0] in ("simulate", "compare", "capacity")]
    return found


def test_the_guides_have_each_command() -> None:
    assert {words[0] for words in commands()} == {"simulate", "compare", "capacity"}


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:2]))
def test_the_commands_of_the_guides_run(
    folder: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    rows = [f"2023-11-16 18:15:{n:02}.5,{40 + n},{4 + n}" for n in range(10)]
    table = ["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]
    (folder / "trace.csv").write_text("\r\n".join(table))
    jobs = [] if words[0] == "simulate" else ["--jobs", "1"]
    assert main([*words, "--num-requests", "6", *jobs]) == 0
    assert "Qwen3-0.6B" in capsys.readouterr().out
