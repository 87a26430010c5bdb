"""Each request as a span of OpenTelemetry, with the names that others give its attributes."""

from time import time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paceline.engine.api import SamplingParams
from paceline.server.client_headers import Caller
from paceline.server.telemetry.request_log import Line

NS = 1_000_000_000


class Spans:
    """A span begins and ends with its request, below the one that the caller named."""

    def __init__(self, processor: SpanProcessor) -> None:
        provider = TracerProvider(resource=Resource.create({"service.name": "paceline"}))
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("paceline")

    @classmethod
    def sent_to(cls, endpoint: str) -> "Spans":
        """In batches, by HTTP; what cannot be delivered is lost and logged."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def ended(self, caller: Caller, params: SamplingParams, line: Line) -> None:
        parent = {"traceparent": caller.traceparent} if caller.traceparent else {}
        now = time_ns()
        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(parent),
            kind=SpanKind.SERVER,
            attributes=attributes(caller, params, line),
            start_time=now - int(line.total_s * NS),
        )
        if line.outcome == "failed":
            span.set_status(StatusCode.ERROR, line.reason)
        span.end(end_time=now)


def attributes(
    caller: Caller, params: SamplingParams, line: Line
) -> dict[str, str | int | float | list[str]]:
    """Those that are known."""
    found = {
        "gen_ai.request.id": caller.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.prompt_tokens": line.prompt_tokens,
        "gen_ai.usage.completion_tokens": line.completion_tokens,
        "gen_ai.usage.cached_tokens": line.cached_tokens,
        "gen_ai.response.finish_reasons": line.finish_reasons,
        "gen_ai.latency.time_in_queue": line.queue_s,
        "gen_ai.latency.time_to_first_token": added(line.queue_s, line.prefill_s),
        "gen_ai.latency.time_in_model_prefill": line.prefill_s,
        "gen_ai.latency.time_in_model_decode": line.decode_s,
        "gen_ai.latency.time_in_model_inference": added(line.prefill_s, line.decode_s),
        "gen_ai.latency.e2e": line.total_s,
        "url.path": line.path,
        "paceline.outcome": line.outcome,
        "paceline.preemptions": line.preemptions,
        "paceline.tenant": line.tenant,
    }
    return {name: value for name, value in found.items() if value is not None}


def added(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
