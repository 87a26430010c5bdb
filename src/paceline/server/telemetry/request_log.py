"""One entry in the log for each request that has ended, however it ended, and its span."""

import logging
from asyncio import CancelledError
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Literal, Protocol

import msgspec
from starlette.exceptions import HTTPException

from paceline.core.errors import ConfigError
from paceline.engine.api import RequestError, RequestOutput, SamplingParams
from paceline.server.client_headers import ClientHeaders
from paceline.server.errors import GATEWAY_TIMEOUT, readable

log = logging.getLogger("paceline.requests")

UNREAD = "the client did not read its stream"

Outcome = Literal["finished", "aborted", "timeout", "refused", "failed"]


class RequestLogEntry(msgspec.Struct):
    """A request after its end. Unknown values are None: the stages of a request that was cut
    short, and the output of one that was refused.

    Its fields: request_id, path, time, outcome, reason, finish_reasons, prompt_tokens,
    completion_tokens, cached_tokens, preemptions, queue_s, prefill_s, decode_s, total_s, tenant,
    trace_id, stream, session_id.
    """

    request_id: str
    path: str
    time: str = ""
    outcome: Outcome = "finished"
    reason: str = ""
    finish_reasons: list[str] = []
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    total_s: float = 0.0
    tenant: str = ""
    trace_id: str = ""
    stream: bool = False
    session_id: str = ""

    def account(self, outputs: Sequence[RequestOutput]) -> None:
        """Add the figures of all parts."""
        self.prompt_tokens = sum(each.usage.prompt_tokens for each in outputs)
        self.completion_tokens = sum(each.usage.completion_tokens for each in outputs)
        self.total_s = round(max(each.timings.total_s for each in outputs), 6)
        if all(each.timings.staged for each in outputs):
            self.cached_tokens = sum(each.usage.cached_tokens for each in outputs)
            self.preemptions = sum(each.timings.preemptions for each in outputs)
            for stage in ("queue_s", "prefill_s", "decode_s"):
                longest: float = max(getattr(each.timings, stage) for each in outputs)
                setattr(self, stage, round(longest, 6))
        answers = [answer for each in outputs for answer in each.outputs]
        self.finish_reasons = [answer.finish_reason or "" for answer in answers]
        self.reason = next((each.error for each in outputs if each.error), "")
        if "error" in self.finish_reasons:
            self.outcome = "failed"
        elif "timeout" in self.finish_reasons:
            self.outcome = "timeout"
        elif "abort" in self.finish_reasons:
            self.outcome = "aborted"

    def end_by(self, error: BaseException, unread: bool) -> None:
        """Record the error that ended the request; `unread`: the client was dropped for it."""
        match error:
            case CancelledError():
                self.outcome = "aborted"
                self.reason = UNREAD if unread else "the client disconnected"
            case HTTPException(status_code=status) if status == GATEWAY_TIMEOUT:
                self.outcome, self.reason = "timeout", readable(str(error.detail))
            case RequestError() | HTTPException():
                self.outcome, self.reason = "refused", readable(str(error))
            case _:
                self.outcome, self.reason = "failed", readable(str(error))

    def write(self) -> None:
        if log.isEnabledFor(logging.INFO):
            self.time = now()
            log.info("%s", self)

    def __str__(self) -> str:
        """A line of text: id, outcome, tokens, seconds."""
        why = f" ({self.reason})" if self.reason else ""
        noun = "token" if self.prompt_tokens == 1 else "tokens"
        tokens = known(
            (f"{{}} {noun} in", self.prompt_tokens),
            ("{} of them cached", self.cached_tokens),
            ("{} out", self.completion_tokens),
        )
        times = known(("{:.3f} s in the queue", self.queue_s), ("{:.3f} s in all", self.total_s))
        summary = "; ".join(part for part in (tokens, times) if part)
        return f"{self.request_id} {self.path}: {self.outcome}{why}; {summary}"


def known(*figures: tuple[str, float | None]) -> str:
    """The known figures, each in its format."""
    return ", ".join(form.format(figure) for form, figure in figures if figure is not None)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """Formats each record as one line with a JSON object. The entry of a request has all fields."""

    def format(self, record: logging.LogRecord) -> str:
        arguments: Any = record.args
        match arguments:
            case (RequestLogEntry() as entry,):
                body: Any = entry
            case _:
                message = super().format(record)
                where = {"level": record.levelname, "logger": record.name}
                body = {"time": now(), **where, "message": readable(message)}
        return msgspec.json.encode(body).decode()


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
