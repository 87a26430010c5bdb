"""One line of JSON for each request that came to its end, whatever the end."""

import logging
from asyncio import CancelledError
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException

from paceline.engine.api import RequestError, RequestOutput
from paceline.server.errors import readable

log = logging.getLogger("paceline.requests")

UNREAD = "the client did not read its stream"

Outcome = Literal["finished", "aborted", "refused", "failed"]


class Line(msgspec.Struct):
    """What is known about a request when it has left; an aborted one has no timings."""

    request_id: str
    path: str
    time: str = ""
    outcome: Outcome = "finished"
    reason: str = ""
    finish_reasons: list[str] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    queue_s: float = 0.0
    total_s: float = 0.0
    tenant: str = ""
    trace_id: str = ""
    stream: bool = False

    def account(self, outputs: Sequence[RequestOutput]) -> None:
        """Take the figures of all parts that have ended."""
        self.prompt_tokens = sum(each.usage.prompt_tokens for each in outputs)
        self.completion_tokens = sum(each.usage.completion_tokens for each in outputs)
        self.cached_tokens = sum(each.usage.cached_tokens for each in outputs)
        self.preemptions = sum(each.timings.preemptions for each in outputs)
        self.queue_s = round(max(each.timings.queue_s for each in outputs), 6)
        self.total_s = round(max(each.timings.total_s for each in outputs), 6)
        answers = [answer for each in outputs for answer in each.outputs]
        self.finish_reasons = [answer.finish_reason or "" for answer in answers]
        if any(each.error for each in outputs):
            self.outcome = "failed"
            self.reason = next(each.error for each in outputs if each.error)
        elif "abort" in self.finish_reasons:
            self.outcome = "aborted"

    def end_by(self, error: BaseException, unread: bool) -> None:
        """It was cut short, with something still unread or not."""
        match error:
            case CancelledError():
                self.outcome = "aborted"
                self.reason = UNREAD if unread else "the client has hung up"
            case RequestError() | HTTPException():
                self.outcome, self.reason = "refused", readable(str(error))
            case _:
                self.outcome, self.reason = "failed", readable(str(error))

    def write(self) -> None:
        if log.isEnabledFor(logging.INFO):
            self.time = datetime.now(UTC).isoformat(timespec="milliseconds")
            log.info(msgspec.json.encode(self).decode())
