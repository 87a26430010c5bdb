"""Metrics: a fold that counts each thing once."""

from paceline.core.events import Timings
from paceline.engine.frontend.metrics import SECONDS, Lengths, Metrics
from paceline.engine.loop.figures import Histogram, first_figures
from paceline.engine.loop.messages import Capacity

NOW = first_figures(Capacity(256, 4, 96, 8, 64))
ONE = Lengths(prompt=7, outputs=[2], n=1, max_tokens=None)


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.total) == (5, 8.0)


def test_a_report_does_not_change_afterwards() -> None:
    metrics = Metrics()
    metrics.cut(ONE, 1.0)
    report = metrics.report(NOW)
    metrics.cut(ONE, 1.0)
    metrics.generated(3)
    assert report.histograms["request_params_n"].count == 1
    assert report.counters["generation_tokens"] == 0


def test_a_request_is_measured_when_it_ends() -> None:
    metrics = Metrics()
    metrics.ended(Lengths(10, [5, 3], 2, 5), 4, Timings(1.0, 2.0, 8.0, 11.0))
    metrics.finished("stop")
    metrics.finished("length")
    report = metrics.report(NOW)
    total = {name: histogram.total for name, histogram in report.histograms.items()}
    assert total["e2e_request_latency_seconds"] == 11.0
    assert total["request_queue_time_seconds"] == 1.0
    assert total["request_inference_time_seconds"] == 10.0
    assert total["request_prefill_time_seconds"] == 2.0
    assert total["request_decode_time_seconds"] == 8.0
    assert total["request_time_per_output_token_seconds"] == 2.0
    assert total["request_generation_tokens"] == 8.0
    assert total["request_max_num_generation_tokens"] == 5.0
    assert total["request_prefill_kv_computed_tokens"] == 6.0
    assert total["request_prompt_tokens"] == 10.0
    assert total["request_params_n"] == 2.0
    assert total["request_params_max_tokens"] == 5.0
    assert report.counters["prompt_tokens_cached"] == 4
    assert report.prompt_by_source == {"local_compute": 6, "local_cache_hit": 4}
    assert report.request_success == {"stop": 1, "length": 1}


def test_a_request_that_was_cut_is_counted_without_its_stages() -> None:
    metrics = Metrics()
    metrics.cut(ONE, 3.0)
    counts = {name: one.count for name, one in metrics.report(NOW).histograms.items()}
    seen = {name for name, count in counts.items() if count}
    assert seen == {
        "e2e_request_latency_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_params_n",
    }


def test_only_stages_that_were_reached_are_measured() -> None:
    metrics = Metrics()
    metrics.ended(ONE, 0, Timings(3.0, 0.0, 0.0, 3.0, reached="queue"))
    metrics.ended(ONE, 4, Timings(1.0, 2.0, 0.0, 3.0, reached="prefill"))
    report = metrics.report(NOW)
    counts = {name: report.histograms[name].count for name in SECONDS if "_time_" in name}
    assert counts == {
        "request_time_per_output_token_seconds": 0,
        "request_queue_time_seconds": 2,
        "request_inference_time_seconds": 1,
        "request_prefill_time_seconds": 0,
        "request_decode_time_seconds": 0,
    }
    assert report.prompt_by_source == {"local_compute": 0, "local_cache_hit": 0}
    assert report.histograms["request_prefill_kv_computed_tokens"].count == 0


def test_tokens_are_counted_by_delivery_and_not_without_any() -> None:
    metrics = Metrics()
    for prompt, generated in ((7, 3), (0, 0), (0, 2)):
        before = metrics.tokens
        if prompt:
            metrics.first_token(prompt, 1.0)
        metrics.generated(generated)
        metrics.delivered(before)
    iterations = metrics.report(NOW).histograms["iteration_tokens_total"]
    assert (iterations.count, iterations.total) == (2, 12.0)


def test_gauges_are_those_of_the_scheduler() -> None:
    now = NOW | {"running": 3.0, "waiting": 2.0, "parked": 1.0, "kv_usage": 0.5, "preemptions": 7.0}
    report = Metrics().report(now)
    assert report.gauges == {
        "num_requests_running": 3.0,
        "num_requests_waiting": 3,
        "num_requests_swapped": 0.0,
        "kv_cache_usage_perc": 0.5,
    }
    assert report.labelled["reason"] == {"capacity": 2, "deferred": 1}
    assert report.counters["num_preemptions"] == 7.0


def test_a_single_token_takes_no_time_after_the_first() -> None:
    metrics = Metrics()
    metrics.ended(Lengths(10, [1], 1, None), 0, Timings(1.0, 2.0, 0.0, 3.0))
    report = metrics.report(NOW)
    assert report.histograms["request_time_per_output_token_seconds"].count == 0


def test_totals_are_those_of_the_scheduler() -> None:
    totals = {"prefix_queries": 9, "prefix_hits": 5, "drafts": 2, "drafted": 6, "accepted": 4}
    host = {"external_queries": 4, "external_hits": 3}
    others = {"swapped": 1, "failed_rows": 3, "drafting_paused": True}
    report = Metrics().report(NOW | totals | host | others)
    assert report.counters["prefix_cache_queries"] == 9
    assert report.counters["prefix_cache_hits"] == 5
    assert report.counters["external_prefix_cache_queries"] == 4
    assert report.counters["external_prefix_cache_hits"] == 3
    assert report.counters["spec_decode_num_drafts"] == 2
    assert report.counters["spec_decode_num_draft_tokens"] == 6
    assert report.counters["spec_decode_num_accepted_tokens"] == 4
    assert report.gauges["num_requests_swapped"] == 1
    assert report.failed_rows == 3
    assert report.drafting_paused
