"""Sends each request as an OpenTelemetry span, with the usual names of attributes."""

from time import time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paceline.engine.api import SamplingParams
from paceline.server.client_headers import ClientHeaders
from paceline.server.telemetry.request_log import RequestLogEntry

NS = 1_000_000_000


class Spans:
    """A span has the start and the end of its request; its parent is the span of the client."""

    def __init__(self, processor: SpanProcessor) -> None:
        provider = TracerProvider(resource=Resource.create({"service.name": "paceline"}))
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("paceline")

    @classmethod
    def sent_to(cls, endpoint: str) -> "Spans":
        """Send spans in batches over HTTP. A failure to send is logged, and the spans are lost."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def ended(self, client: ClientHeaders, params: SamplingParams, entry: RequestLogEntry) -> None:
        parent = {"traceparent": client.traceparent} if client.traceparent else {}
        now = time_ns()
        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(parent),
            kind=SpanKind.SERVER,
            attributes=attributes(client, params, entry),
            start_time=now - int(entry.total_s * NS),
        )
        if entry.outcome == "failed":
            span.set_status(StatusCode.ERROR, entry.reason)
        span.end(end_time=now)


def attributes(
    client: ClientHeaders, params: SamplingParams, entry: RequestLogEntry
) -> dict[str, str | int | float | list[str]]:
    """The attributes with a known value."""
    found = {
        "gen_ai.request.id": client.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.prompt_tokens": entry.prompt_tokens,
        "gen_ai.usage.completion_tokens": entry.completion_tokens,
        "gen_ai.usage.cached_tokens": entry.cached_tokens,
        "gen_ai.response.finish_reasons": entry.finish_reasons,
        "gen_ai.latency.time_in_queue": entry.queue_s,
        "gen_ai.latency.time_to_first_token": first_token_s(entry),
        "gen_ai.latency.time_in_model_prefill": entry.prefill_s,
        "gen_ai.latency.time_in_model_decode": entry.decode_s,
        "gen_ai.latency.time_in_model_inference": added(entry.prefill_s, entry.decode_s),
        "gen_ai.latency.e2e": entry.total_s,
        "url.path": entry.path,
        "paceline.outcome": entry.outcome,
        "paceline.preemptions": entry.preemptions,
        "paceline.tenant": entry.tenant,
    }
    return {name: value for name, value in found.items() if value is not None}


def first_token_s(entry: RequestLogEntry) -> float | None:
    """From arrival, also of a request that was in another engine before, in no stage."""
    return None if entry.decode_s is None else round(entry.total_s - entry.decode_s, 6)


def added(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
