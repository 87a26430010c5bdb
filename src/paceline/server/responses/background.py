"""Runs responses for which no client waits, and finds those of all processes of a server."""

import logging
from collections.abc import Mapping

from fastapi import Response
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from paceline.core.errors import PacelineError
from paceline.engine.transport.front_end_link import PeerVerb
from paceline.server.context import ServerContext
from paceline.server.errors import NOT_FOUND, ApiError, api_error_of
from paceline.server.replies.generation_response import (
    GenerationJob,
    GenerationResponse,
    hung_up,
    until,
)
from paceline.server.responses.events import WAIT_S, EventBatch, ResponsesWriter, events_of
from paceline.server.responses.store import StoredResponse
from paceline.server.schemas.responses import ResponseFault, response_event

log = logging.getLogger("paceline.server")

ABORTED = "aborted"  # the code of an error: the request was aborted before it started
PATH = "/v1/responses"


def start(context: ServerContext, job: GenerationJob, writer: ResponsesWriter) -> None:
    """Begin a response. 429 or 503 if it is refused at once. The events of a stream are kept."""
    context.check_open()
    context.engine.check_room(1)
    writer.keep("queued")
    if job.stream:
        context.responses.open_log(job.name)
    context.background.start(job.name, run(context, job, writer))


async def run(context: ServerContext, job: GenerationJob, writer: ResponsesWriter) -> None:
    """Generate a response; its writer keeps it. One that fails is kept with the error."""
    writer.keep("in_progress")
    scope: Scope = {"type": "http", "path": PATH}

    async def send(message: Message) -> None:
        context.responses.add_events(job.name, message.get("body", b""))

    try:
        await GenerationResponse(context, job).answer(scope, send)
    except Exception as error:  # noqa: BLE001 - no client waits for it; it is kept and logged
        last = ended_by(error, job.name, writer)
        context.responses.add_events(job.name, last)
    finally:
        if (events := context.responses.log(job.name)) is not None:
            events.end()


def ended_by(error: Exception, name: str, writer: ResponsesWriter) -> bytes:
    """Keep a response that has failed, or was aborted before it started; returns its events."""
    fault = api_error_of(error, PATH).body.error
    if fault.code == ABORTED:
        return writer.ending("cancelled")
    is_known = isinstance(error, PacelineError | HTTPException)
    log.warning("the response %s has failed: %s", name, error, exc_info=None if is_known else error)
    return writer.ending("failed", ResponseFault(fault.code, fault.message))


# -- of all processes -----------------------------------------------------------


async def stored(context: ServerContext, name: str, param: str = "response_id") -> StoredResponse:
    """A response of this process or another. 404 if there is none."""
    if (here := context.responses.get(name)) is not None:
        return here
    return StoredResponse.received(await elsewhere(context, "response", (name,), param))


async def cancelled(context: ServerContext, name: str) -> StoredResponse:
    """The same, ended if it runs in the background."""
    if (here := await cancelled_here(context, name)) is not None:
        return here
    return StoredResponse.received(await elsewhere(context, "cancel", (name,)))


async def cancelled_here(context: ServerContext, name: str) -> StoredResponse | None:
    if name in context.background:
        await context.open_requests.abort(name)
        await context.background.ended(name)
    return context.responses.get(name)


async def removed(context: ServerContext, name: str) -> None:
    """Forget a response of this process or another. 404 if there is none."""
    if not await removed_here(context, name):
        answers = await context.peers.ask("remove", (name,))
        if not any(found for (found,) in answers):
            raise missing(name)


async def removed_here(context: ServerContext, name: str) -> bool:
    found = await cancelled_here(context, name)
    return found is not None and context.responses.remove(name)


async def events_after(context: ServerContext, name: str, number: int) -> EventBatch:
    """The events of a response after one of them; none, if there are none for some time.

    404 if it is not stored, or its events are not.
    """
    if (here := await events_here(context, name, number)) is not None:
        return here
    return EventBatch.received(await elsewhere(context, "events", (name, str(number))))


async def events_here(context: ServerContext, name: str, number: int) -> EventBatch | None:
    if (events := context.responses.log(name)) is not None:
        return await events.after(number)
    found = context.responses.get(name)
    if found is None or found.has_log:
        return None
    if name in context.background:
        await context.background.ended(name, WAIT_S)
        return EventBatch(b"", number, ended=False)
    return EventBatch.of(events_of(found.body), number, ended=True)


async def elsewhere(
    context: ServerContext, verb: PeerVerb, names: tuple[str, ...], param: str = "response_id"
) -> bytes:
    """What another process knows of a response, whose name comes first. 404 if none knows it."""
    answers = await context.peers.ask(verb, names)
    found = next((sent for (sent,) in answers if sent), None)
    if found is None:
        raise missing(names[0], param)
    return found


def missing(name: str, param: str = "response_id") -> ApiError:
    problem = f"Response with id {name!r} not found; it was not stored, or is stored no longer"
    return ApiError(NOT_FOUND, problem, param=param)


BODY = "http.response.body"
NO_HEADERS: Mapping[str, str] = {}


class EventResponse(Response):
    """The events after the one with the number `after`. The response does not depend on it: it is
    generated to its end if the client goes away, which can ask for the other events later."""

    media_type = "text/event-stream"

    def __init__(
        self,
        context: ServerContext,
        name: str,
        after: int = -1,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **headers})
        del self.headers["content-length"]
        self._context, self._name, self._after = context, name, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until(hung_up(receive), self._send(send))

    async def _send(self, send: Send) -> None:
        batch = await events_after(self._context, self._name, self._after)
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        while not batch.ended:
            if batch.events:
                await send({"type": BODY, "body": batch.events, "more_body": True})
            try:
                batch = await events_after(self._context, self._name, batch.last)
            except ApiError as error:
                await send({"type": BODY, "body": forgotten(error, batch.last + 1)})
                return
        await send({"type": BODY, "body": batch.events})


def forgotten(error: ApiError, number: int) -> bytes:
    """The last event of a response that is stored no longer."""
    detail = error.body.error
    return response_event("error", number, code=detail.code, message=detail.message, param=None)
