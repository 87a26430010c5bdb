"""The protocol of a tracer, and its import on request."""

from importlib import import_module
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.engine.api import SamplingParams
from paceline.server.client_headers import ClientHeaders
from paceline.server.telemetry.request_log import RequestLogEntry


class Tracing(Protocol):
    """Receives each request once, after its end."""

    def ended(
        self, client: ClientHeaders, params: SamplingParams, entry: RequestLogEntry
    ) -> None: ...


def tracing_to(endpoint: str) -> Tracing:
    """Import OpenTelemetry, which is needed only if spans are sent."""
    try:
        spans = import_module("paceline.server.telemetry.spans")
    except ImportError as error:
        wanted = "otlp_endpoint needs OpenTelemetry; run pip install 'paceline[otel]'"
        raise ConfigError(f"{wanted}: {error}") from error
    return spans.Spans.sent_to(endpoint)
