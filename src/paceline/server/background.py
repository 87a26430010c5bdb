"""Runs responses for which no client waits, and finds those of all processes of a server."""

import logging
from collections.abc import Callable

from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.types import Message, Scope

from paceline.core.errors import PacelineError
from paceline.engine.core.front_end_wire import PeerVerb
from paceline.server.context import ServerContext
from paceline.server.errors import NOT_FOUND, ApiError, api_error_of
from paceline.server.respond import GenerationJob, GenerationResponse
from paceline.server.response_store import StoredResponse
from paceline.server.schemas.responses import ResponseBody, ResponseFault

log = logging.getLogger("paceline.server")

ABORTED = "aborted"  # the code of an error: the request was aborted before it started
PATH = "/v1/responses"

Keep = Callable[[ResponseBody], None]


def start(context: ServerContext, job: GenerationJob, begun: ResponseBody, keep: Keep) -> None:
    """Begin a response. 429 or 503 if it is refused at once."""
    context.check_open()
    context.engine.check_room(1)
    keep(begun)
    context.background.start(job.name, run(context, job, begun, keep))


async def run(context: ServerContext, job: GenerationJob, begun: ResponseBody, keep: Keep) -> None:
    """Generate a response; its writer keeps it. One that fails is kept with the error."""
    keep(replace(begun, status="in_progress"))
    scope: Scope = {"type": "http", "path": PATH}
    try:
        await GenerationResponse(context, job).answer(scope, unsent)
    except Exception as error:  # no client waits for it, so that it is kept
        fault = api_error_of(error, PATH).body.error
        if fault.code == ABORTED:
            keep(replace(begun, status="cancelled"))
            return
        is_known = isinstance(error, PacelineError | HTTPException)
        log.warning(
            "the response %s has failed: %s", job.name, error, exc_info=None if is_known else error
        )
        keep(replace(begun, status="failed", error=ResponseFault(fault.code, fault.message)))


async def unsent(message: Message) -> None:
    """The client reads the stored response."""


# -- of all processes -----------------------------------------------------------


async def stored(context: ServerContext, name: str, param: str = "response_id") -> StoredResponse:
    """A response of this process or another. 404 if there is none."""
    return context.responses.get(name) or await elsewhere(context, "response", name, param)


async def cancelled(context: ServerContext, name: str) -> StoredResponse:
    """The same, ended if it runs in the background."""
    return await cancelled_here(context, name) or await elsewhere(context, "cancel", name)


async def cancelled_here(context: ServerContext, name: str) -> StoredResponse | None:
    if name in context.background:
        await context.abort(name)
        await context.background.ended(name)
    return context.responses.get(name)


async def removed(context: ServerContext, name: str) -> None:
    """Forget a response of this process or another. 404 if there is none."""
    if not removed_here(context, name):
        answers = await context.peers.ask("remove", (name,))
        if not any(found for (found,) in answers):
            raise missing(name)


def removed_here(context: ServerContext, name: str) -> bool:
    return context.responses.remove(name)


async def elsewhere(
    context: ServerContext, verb: PeerVerb, name: str, param: str = "response_id"
) -> StoredResponse:
    answers = await context.peers.ask(verb, (name,))
    found = next((sent for (sent,) in answers if sent), None)
    if found is None:
        raise missing(name, param)
    return StoredResponse.received(found)


def missing(name: str, param: str = "response_id") -> ApiError:
    problem = f"Response with id {name!r} not found; it was not stored, or is stored no longer"
    return ApiError(NOT_FOUND, problem, param=param)
