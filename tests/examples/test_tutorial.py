"""Each script of the tutorial runs with the embedded model and prints what its page promises."""

import re
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

import pytest

from paceline.hub.pull import pull
from tests.server.real import Running, running

FOLDER = Path(__file__).parents[2] / "examples"
TESTED_APART = {"prefill_decode_proxy", "tool_loop"}
# What the output of a script must have.
SHOWN = {
    "offline_batch": [r"The capital of France is' -> ' Paris", r"waited [\d.]+ m?s.*max_num_seqs"],
    "chat": [r"> Which of the two is longer\?\n.+", r"[1-9]\d+ prompt tokens came from"],
    "stream": [r"whole: .{40}", r"beginning: .{10,24}\n"],
    "structured_output": [r"name='.*' country='.*' size='(small|large)' inhabitants=\d+"],
    "adapters": [r"plain: ' Paris", r"adapter: '(?! Paris)"],
    "beams_and_samples": [
        r"4 samples\n(  \d: .*\(log-probability -.*\)\n){4}",
        r"beams\n(  .*\n){2}",
    ],
    "search": [r"loaf stay in the oven\?\n  0\.\d+  Bake the bread"],
    "own_policy": [r"step  ", r"Brief.* instead of fcfs.*: sooner first tokens"],
    "simulate_and_compare": [r"TTFT p99", r"fair instead of fcfs", r"the report as JSON has"],
    "record_and_replay": [r"every plan is the same: True", r"admitted in step \d+"],
    "two_engines": [r"killed engine process \d+; all texts are the same: True"],
}


def output_of(name: str, capture: pytest.CaptureFixture[str]) -> str:
    """Run a script in this process, where torch is imported already; return what it prints."""
    run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capture.readouterr().out


@pytest.fixture(scope="module", autouse=True)
def model() -> Path:
    return pull("smollm2")


@pytest.mark.parametrize("name", SHOWN)
def test_a_script_runs(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    output = output_of(name, capfd)
    for expected in SHOWN[name]:
        assert re.search(expected, output), f"{expected} is not in:\n{output}"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(Path("smollm2"), weights="auto", kv_cache_gib=0.25) as server:
        yield server


def test_the_tool_loop_runs_with_a_server(
    server: Running, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", str(server.http.base_url.join("/v1")))
    output = output_of("tool_loop", capfd)
    assert re.search(r'price_of\(\{"article": ?"(apple|bread|milk)"\}\) -> \d\.\d\d euros', output)
    assert "answer: " in output


def test_every_script_is_listed_and_tested() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    listed = re.findall(r"\]\((\w+)\.py\)", (FOLDER / "README.md").read_text())
    assert scripts == set(listed) == SHOWN.keys() | TESTED_APART
