"""Spans: one for each request, below the caller's."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from paceline.core.plan import Plan
from paceline.server.telemetry.request_log import RequestLogEntry, tracing_to
from paceline.server.telemetry.spans import Spans, first_token_s
from tests.server.support import Site, on_its_own_server, paced

PATH = "/v1/completions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY: dict[str, Any] = {"prompt": "the quick", "max_tokens": 7, "ignore_eos": True}


def test_each_request_is_a_span() -> None:
    kept = InMemorySpanExporter()
    failing = {"now": False}

    def breaks(plan: Plan, where: str) -> bool:
        paced(plan, where)
        return failing["now"] and where == "wait"

    async def scenario(site: Site) -> None:
        site.context.tracing = Spans(SimpleSpanProcessor(kept))
        headers = {"X-Request-Id": "mine", "traceparent": f"00-{TRACE}-{PARENT}-01"}
        await site.http.post(PATH, json={**BODY, "temperature": 0.5, "n": 2}, headers=headers)
        await site.post(PATH, **BODY)
        failing["now"] = True
        await site.post(PATH, **BODY)
        failing["now"] = False
        hanging = asyncio.create_task(site.post(PATH, **{**BODY, "max_tokens": 240}))
        await site.until(lambda: len(site.context.open_requests) == 1)
        hanging.cancel()
        await site.until(lambda: site.empty)

    on_its_own_server(scenario, breaks=breaks)
    named, plain, failed, aborted = kept.get_finished_spans()
    check_named(named)
    assert plain.parent is None
    assert plain.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert "failed" in (failed.status.description or "")
    assert aborted.status.status_code is StatusCode.UNSET
    assert aborted.attributes is not None
    assert aborted.attributes["paceline.outcome"] == "aborted"
    assert aborted.attributes["gen_ai.usage.prompt_tokens"] > 0  # type: ignore[operator]
    assert "gen_ai.latency.time_in_queue" not in aborted.attributes
    assert "gen_ai.latency.time_to_first_token" not in aborted.attributes


def check_named(span: ReadableSpan) -> None:
    assert span.name == "llm_request"
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    told = span.attributes
    assert told is not None
    assert told["gen_ai.request.id"] == "mine"
    assert told["gen_ai.request.n"] == 2
    assert told["gen_ai.request.max_tokens"] == 7
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.usage.completion_tokens"] == 14
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    stages = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    total = sum(float(str(told[f"gen_ai.latency.{stage}"])) for stage in stages)
    assert abs(total - float(str(told["gen_ai.latency.e2e"]))) < 1e-3
    queue, prefill, decode = (float(str(told[f"gen_ai.latency.{stage}"])) for stage in stages)
    assert told["gen_ai.latency.time_to_first_token"] == pytest.approx(queue + prefill, abs=1e-5)
    assert told["gen_ai.latency.time_in_model_inference"] == prefill + decode
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time >= total * 0.99e9


def test_the_time_in_an_engine_that_died_is_before_the_first_token() -> None:
    entry = RequestLogEntry("a", "/", queue_s=1.0, prefill_s=1.0, decode_s=2.0, total_s=9.0)
    assert first_token_s(entry) == 7.0


def test_a_tracer_is_found_by_where_spans_go() -> None:
    assert isinstance(tracing_to("http://127.0.0.1:9/v1/traces"), Spans)
