"""The three benchmarks as commands, on a real server and on a tiny model."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from tests.cli.support import SMALL, serving
from tests.cli.test_main import Terminal, posix_only
from tests.server.support import Site, paced

SHAPE = ("--input-len", "8-12", "--output-len", "3-5", "--vocab-size", "300")


def serve(site: Site, *words: str) -> int:
    return main(["bench", "serve", "--url", site.url, *SHAPE, *words])


def test_a_server_is_measured(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, plot = tmp_path / "run.json", tmp_path / "run.html"
    words = ["--num-prompts", "6", "--request-rate", "200", "--max-concurrency", "3"]
    words += ["--goodput", "ttft:60000", "tpot:60000", "-o", str(output), "--plot", str(plot)]
    assert serve(site, *words) == 0
    said = capsys.readouterr().out
    assert "6 succeeded, 0 failed" in said
    assert "requests/s within ttft 60000 ms, tpot 60000 ms" in said
    found = json.loads(output.read_text())
    assert found["goodput"] == found["requests_per_s"] > 0
    assert found["settings"]["model"] == "oracle"
    assert found["settings"]["goodput_ms"] == {"ttft": 60000.0, "tpot": 60000.0}
    assert {one["prompt_tokens"] for one in found["requests"]} <= set(range(8, 13))
    assert {one["output_tokens"] for one in found["requests"]} <= {3, 4, 5}
    assert "6 succeeded" in plot.read_text()


def test_prefixes_are_shared(site: Site) -> None:
    before = site.scheduler.stats.prefix_hits
    assert serve(site, "--num-prompts", "3", "--prefix-len", "4", "--max-concurrency", "1") == 0
    assert site.scheduler.stats.prefix_hits == before + 2 * 4


def test_prompts_are_new_in_each_run_unless_a_seed_is_given(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, found = tmp_path / "run.json", list[dict[str, Any]]()
    words = ["--num-prompts", "3", "--request-rate", "200", "--warmup", "0", "-o", str(output)]
    for more in ([], [], ["--seed", "7"], ["--seed", "7"]):
        assert serve(site, *words, *more) == 0
        assert "prefix cache            " in capsys.readouterr().out
        found.append(json.loads(output.read_text()))
    hits = [one["prefix_cache"]["hits"] for one in found]
    assert hits[:3] == [0, 0, 0]
    assert hits[3] > 0
    lengths = [[one["prompt_tokens"] for one in run["requests"]] for run in found]
    assert lengths[0] == lengths[1], "lengths and arrivals are the same"
    seeds = [run["settings"]["prompt_seed"] for run in found]
    assert seeds[2:] == [7, 7]
    assert seeds[0] != seeds[1]


def test_chat(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(site, "--num-prompts", "2", "--endpoint", "chat", "--warmup", "0") == 0
    assert "2 succeeded, 0 failed" in capsys.readouterr().out


def test_a_trace_is_replayed(site: Site, tmp_path: Path) -> None:
    trace, output = tmp_path / "trace.jsonl", tmp_path / "run.json"
    rows = [
        {"timestamp": 400 * at, "input_length": 700, "output_length": 90, "hash_ids": [0, at]}
        for at in range(5)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    words = ["--trace", str(trace), "--trace-speed", "8", "--num-prompts", "3"]
    words += ["--max-input-len", "20", "--max-output-len", "4", "--output", str(output)]
    assert serve(site, *words) == 0
    found = json.loads(output.read_text())["requests"]
    assert [(one["prompt_tokens"], one["output_tokens"]) for one in found] == [(20, 4)] * 3
    assert all(one["sent_s"] >= at for one, at in zip(found, (0, 0.05, 0.1), strict=True))


@posix_only
def test_an_interrupted_run_reports_what_it_measured(tmp_path: Path) -> None:
    output = tmp_path / "run.json"
    with serving(breaks=paced) as site:
        words = ["--num-prompts", "500", "--max-concurrency", "2", "-o", str(output)]
        terminal = Terminal("bench", "serve", "--url", site.url, *SHAPE, *words)
        terminal.read_until("/500 requests, 0 failed, ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    found = json.loads(output.read_text())
    assert 0 < found["completed"] == len(found["requests"]) < 500
    assert f"interrupted after {found['completed']} of 500 requests" in terminal.seen
    assert "time to first token" in terminal.seen
    assert "Traceback" not in terminal.seen


def test_an_interrupted_throughput_says_that_nothing_was_measured(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.bench.report.throughput", interrupted)
    assert main(["bench", "throughput", model, *SMALL]) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("a smaller --num-prompts takes less time\n")


def test_failures_are_told(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(site, "--num-prompts", "2", "--model", "nobody") == 1
    said = capsys.readouterr().out
    assert "0 succeeded, 2 failed" in said
    assert "  status 404            2" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--goodput", "speed:3"], "no target 'speed'"),
        (["--plot", "x.gif"], ".svg, .png or .html"),
        (["--trace", "nowhere"], "nowhere: cannot be read"),
        (["--prefix-len", "50"], "leaves nothing"),
        (["--trace", "."], ".: cannot be read"),
    ],
)
def test_wrong_values(
    words: list[str], expected: str, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(site, *words) == 2
    assert expected in capsys.readouterr().err


def test_a_plot_without_matplotlib_names_its_extra_before_the_measurement(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "paceline.bench.plot", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["bench", "serve", "--url", site.url, "--plot", "x.svg"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "this needs matplotlib: pip install 'paceline[plot]'" in said.err
    assert said.out == ""


def test_targets_need_their_flag(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        serve(site, "ttft:3")
    assert caught.value.code == 2
    assert "'ttft:3' is not expected here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["throughput", "--num-prompts", "5"], "requests                5 in"),
        (["latency", "--num-iters", "2", "--batch-size", "3"], "3 requests, 2 times"),
    ],
)
def test_an_engine_of_this_process_is_measured(
    command: list[str],
    told: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ("--input-len", "8", "--output-len", "4", "--vocab-size", "70")
    output = tmp_path / "run.json"
    assert main(["bench", *command, model, *SMALL, *shape, "-o", str(output)]) == 0
    assert told in capsys.readouterr().out
    found = json.loads(output.read_text())
    assert found["kind"] == command[0]
    assert found["settings"]["engine"] == {"kv_cache_gib": 0.01, "max_num_seqs": 4}
