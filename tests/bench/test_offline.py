"""Prompts in this process, on a real engine."""

import pytest

from paceline.bench.report import Repeats, Run, RunFailed, latency, throughput
from paceline.engine.offline.offline import OfflineEngine
from tests.bench.support import call
from tests.engine.support import build


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
