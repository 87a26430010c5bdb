"""Reads the bodies of requests: long ones on a thread, and none with too many values."""

import json
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from paceline.engine.long_work import LongWork
from paceline.server.errors import TOO_LARGE, ApiError, malformed

SHORT_BODY = 16 * 2**10  # bytes; reading one takes about a millisecond
JSON = "application/json"
STRUCTURE = b",:[{"  # each value of a list or an object has one of these before it

T = TypeVar("T")


class BodyRequest(Request):
    """A request whose long body is parsed and validated on a thread."""

    def __init__(
        self, request: Request, model: type[BaseModel], work: LongWork, most_values: int
    ) -> None:
        super().__init__(request.scope, request.receive)
        self._model, self._work, self._most_values = model, work, most_values
        self._long = False

    async def json(self) -> Any:
        """The body as JSON, or as a model if it is long: FastAPI accepts both."""
        body = await self.body()
        self._long = len(body) > SHORT_BODY
        return await self.parsed(self._read, body)

    async def model(self) -> BaseModel:
        """The body as a model. ValueError or RecursionError if it is not JSON."""
        found = await self.json()
        return found if self._long else self._validated(found)

    async def parsed(self, parse: Callable[..., T], *given: Any) -> T:
        """Call the function, on a thread if the body is long."""
        return await self._work.run(parse, *given) if self._long else parse(*given)

    def _read(self, body: bytes) -> Any:
        if not self._long:
            return json.loads(body)
        check_values(body, self._most_values)
        return self._validated(json.loads(body))

    def _validated(self, given: Any) -> BaseModel:
        try:
            return self._model.model_validate(given)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            errors = [{**one, "loc": ("body", *one["loc"])} for one in found]
        raise malformed(self, RequestValidationError(errors))


def body_route(work: LongWork, most_values: int) -> type[APIRoute]:
    """The class of routes with a body."""

    class BodyRoute(APIRoute):
        """Hands a `BodyRequest` to the handler.

        A route with a body, the request and a response of its own needs nothing else of FastAPI,
        which would take as long again as to read the body.
        """

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle, field = super().get_route_handler(), self.body_field
            if field is None:
                return handle
            model: Any = field.field_info.annotation
            known = signature(self.endpoint)
            is_plain = (*known.parameters, known.return_annotation) == ("body", "request", Response)

            async def handle_body(request: Request) -> Response:
                asked = BodyRequest(request, model, work, most_values)
                kind = request.headers.get("content-type", "").partition(";")[0]
                if not is_plain or kind != JSON:
                    return await handle(asked)
                try:
                    body = await asked.model()
                except (ValueError, RecursionError):  # FastAPI says what is wrong
                    return await handle(asked)
                return await self.endpoint(body, asked)

            return handle_body

    return BodyRoute


async def parsed(request: Request, parse: Callable[..., T], *given: Any) -> T:
    """Call the function, on a thread if the body of the request is long."""
    assert isinstance(request, BodyRequest), "the route has another class than `body_route`"
    return await request.parsed(parse, *given)


def check_values(body: bytes, most: int) -> None:
    """Refuse a body with too many values, before it is parsed: each takes time and memory."""
    if count(body) <= most:
        return
    if b"\0" not in body:  # UTF-8, so that a quote is a quote
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
        strings = body.count(b'"') // 2
        if strings <= most + 1 and count(b"".join(body.split(b'"')[::2])) <= most:
            return
    raise ApiError(TOO_LARGE, f"the body has more than {most} values (body_values)")


def count(body: bytes) -> int:
    """The number of values, if none of its strings has a character of `STRUCTURE`."""
    return sum(body.count(each) for each in STRUCTURE)
