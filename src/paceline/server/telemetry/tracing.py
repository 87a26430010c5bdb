"""What a tracer has to do, and how one is found where spans are wanted."""

from importlib import import_module
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.engine.api import SamplingParams
from paceline.server.client_headers import ClientHeaders
from paceline.server.telemetry.request_log import RequestLogEntry


class Tracing(Protocol):
    """Hears of each request once, when it has left."""

    def ended(
        self, client: ClientHeaders, params: SamplingParams, entry: RequestLogEntry
    ) -> None: ...


def tracing_to(endpoint: str) -> Tracing:
    """OpenTelemetry is imported only where somebody asks for it."""
    try:
        spans = import_module("paceline.server.telemetry.spans")
    except ImportError as error:
        wanted = "otlp_endpoint needs OpenTelemetry, pip install 'paceline[otel]'"
        raise ConfigError(f"{wanted}: {error}") from error
    return spans.Spans.sent_to(endpoint)
