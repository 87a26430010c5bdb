"""Reports of runs, and runs in this process on a real engine."""

import json
from dataclasses import replace

import pytest

from paceline.bench.report import (
    Repeats,
    Run,
    RunFailed,
    latency,
    lines_of,
    lines_of_latency,
    lines_of_throughput,
    record,
    record_of_latency,
    record_of_throughput,
    throughput,
)
from paceline.bench.samples import Outcome, PrefixCacheUse, ServerRun
from paceline.engine.offline.offline import OfflineEngine
from tests.bench.support import call, made_up
from tests.engine.support import build

TARGETS = {"ttft": 60.0}
RUN = Run(2.0, 4, 30, 10)


def test_lines_for_people() -> None:
    outcome = Outcome.of(made_up(), TARGETS)
    text = "\n".join(lines_of(outcome, TARGETS, PrefixCacheUse(2000, 150)))
    assert "prefix cache            7.5% hits: 150 of 2,000 prompt tokens" in text
    assert "requests                9 succeeded, 1 failed" in text
    assert "  timeout               1" in text
    assert "6.00 requests/s, 12.0 output tokens/s, 60.0 tokens/s" in text
    assert "goodput                 6.00 requests/s within ttft 60 ms" in text
    assert "time to first token            50.0       50.0       50.0       50.0       50.0" in text
    assert "ms late" in text, "the last ones were sent long after they should have been"


def test_lines_without_targets_or_delays() -> None:
    samples = [replace(one, planned_s=one.sent_s) for one in made_up()[:3]]
    text = "\n".join(lines_of(Outcome.of(samples, {}), {}))
    assert "goodput" not in text
    assert "prefix cache" not in text
    assert "ms late" not in text


def test_lines_of_a_run_that_failed() -> None:
    text = "\n".join(lines_of(Outcome.of(made_up()[-1:], {}), {}))
    assert "0 succeeded, 1 failed" in text
    assert text.count("          -") == 20


def test_the_first_message_of_a_kind_of_error_is_told() -> None:
    lost = made_up()[-1]
    refused = [replace(lost, error="status 400", message=text) for text in ("too long", "other")]
    lines = lines_of(Outcome.of([lost, *refused], {}), {})
    assert "  status 400            2, the first: too long" in lines
    assert "  timeout               1" in lines


def test_records_are_plain_and_whole() -> None:
    outcome = Outcome.of(made_up(), TARGETS)
    run = ServerRun(made_up(), PrefixCacheUse(8, 2))
    found = json.loads(json.dumps(record(outcome, run, {"model": "m"})))
    assert found["prefix_cache"] == {"queries": 8, "hits": 2, "hit_rate": 0.25}
    assert found["settings"] == {"model": "m"}
    assert (found["completed"], found["errors"]) == (9, {"timeout": 1})
    assert found["ttft_ms"].keys() == {"mean", "median", "p90", "p99", "most"}
    assert found["requests_per_s"] == outcome.requests_per_s
    assert len(found["requests"]) == 10
    assert found["requests"][-1]["ttft_ms"] is None
    assert found["requests"][-1]["error"] == "timeout"


def test_runs_in_this_process() -> None:
    assert "2.00 requests/s, 5.0 output tokens/s" in lines_of_throughput(RUN)[-1]
    assert record_of_throughput(RUN, {})["output_tokens_per_s"] == 5.0
    repeats = Repeats([RUN, replace(RUN, seconds=4.0)])
    assert lines_of_latency(repeats)[-1].split()[2:4] == ["3.000", "3.000"]
    assert [run["seconds"] for run in record_of_latency(repeats, {})["runs"]] == [2.0, 4.0]


@pytest.fixture
def llm() -> OfflineEngine:
    return OfflineEngine("oracle", build)


def test_throughput_counts_what_was_asked_for(llm: OfflineEngine) -> None:
    done = throughput(llm, [call(number, 5 + number, 4) for number in range(6)], 300, 0)
    assert (done.requests, done.prompt_tokens, done.output_tokens) == (6, 45, 24)
    assert done.seconds > 0


def test_latency_measures_a_batch_again_and_again_without_prefix_hits(llm: OfflineEngine) -> None:
    repeats = latency(llm, [call(0, 40, 2), call(1, 40, 2)], 300, repeats=3, warmup=2)
    assert len(repeats.runs) == 3
    assert [run.output_tokens for run in repeats.runs] == [4, 4, 4]
    assert llm.get_metrics().counters["prefix_cache_hits"] == 0


def test_an_interrupt_keeps_the_runs_that_were_measured(llm: OfflineEngine) -> None:
    def interrupt(runs: int) -> None:
        if runs == last:
            raise KeyboardInterrupt

    last = 4
    repeats = latency(llm, [call(0, 8, 2)], 300, repeats=5, warmup=2, report=interrupt)
    assert len(repeats.runs) == 2
    last = 2
    with pytest.raises(KeyboardInterrupt):
        latency(llm, [call(0, 8, 2)], 300, repeats=5, warmup=2, report=interrupt)


def test_a_prompt_that_fails_fails_the_run(llm: OfflineEngine) -> None:
    with pytest.raises(RunFailed, match="1 of 2 prompts failed"):
        throughput(llm, [call(0), call(1, tokens=900)], 300, 0)


def test_rates_and_spreads() -> None:
    runs = [Run(2.0, 4, 30, 10), Run(4.0, 4, 30, 10)]
    assert runs[0].requests_per_s == 2.0
    assert runs[0].output_tokens_per_s == 5.0
    assert runs[0].total_tokens_per_s == 20.0
    assert Repeats(runs).seconds.mean == 3.0
