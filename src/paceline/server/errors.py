"""Errors as responses in the shape of OpenAI's, and responses in the OpenAPI document."""

import re
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, cast

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from paceline.engine.api import (
    EngineFailed,
    EngineUnavailable,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from paceline.engine.params import SamplingParams
from paceline.server.client_headers import ID, random_id, sent_id

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, WRONG_METHOD = 400, 401, 404, 405
TOO_SLOW, TOO_LARGE, HEAD_TOO_LARGE = 408, 413, 431
TOO_MANY, BROKEN, UNAVAILABLE, GATEWAY_TIMEOUT = 429, 500, 503, 504
KINDS = {
    UNAUTHORIZED: "authentication_error",
    NOT_FOUND: "not_found_error",
    TOO_MANY: "rate_limit_error",
    GATEWAY_TIMEOUT: "timeout_error",
}
# The codes of errors without a code of their own.
CODES = {
    BAD_REQUEST: "invalid_request",
    UNAUTHORIZED: "invalid_api_key",
    NOT_FOUND: "not_found",
    WRONG_METHOD: "method_not_allowed",
    TOO_SLOW: "body_timeout",
    TOO_LARGE: "body_too_large",
    HEAD_TOO_LARGE: "headers_too_large",
    UNAVAILABLE: "unavailable",
}
MESSAGES = "/v1/messages"
# The types of Anthropic's errors, by the codes and types of ours.
FAULT_KINDS = {
    "body_too_large": "request_too_large",
    "draining": "overloaded_error",
    "unhealthy": "overloaded_error",
    "unavailable": "overloaded_error",
    "server_error": "api_error",
}
Routes = Mapping[str, Collection[str]]  # the methods of each path

WORD = re.compile(r"[a-z_]+")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")  # an id or a value may contain the name of a field
OWN = (
    "timeout",
    "deadline",
    "priority",
    "tools",
    "tool_choice",
    "documents",
    "thinking_token_budget",
    "reasoning_effort",
    "top_logprobs",
    "continue_final_message",
    "truncate_prompt_tokens",
    "kv_transfer_params",
    "data_parallel_rank",
)
NAMED_IN_ERRORS = frozenset({*OWN, *(one.name for one in fields(SamplingParams))})
# Words for the prompt in messages, and the field that has the prompt.
PROMPT_WORDS = frozenset({"prompt", "chat", "message", "part", "call"})
FIELDS = {
    "/v1/chat/completions": "messages",
    "/v1/chat/completions/batch": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/responses/compact": "input",
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
FAULT = {"description": "The error", "content": {"application/json": {"schema": ERROR}}}
MESSAGE_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
MESSAGE_FAULT = {
    "description": "The error",
    "content": {"application/json": {"schema": MESSAGE_ERROR}},
}
Documented = dict[int | str, dict[str, Any]]
ERRORS: Documented = {"4XX": FAULT, "5XX": FAULT}
GENERATED: Documented = {
    200: {
        "description": "The answer, or a stream of it",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **ERRORS,
}
MESSAGE_ERRORS: Documented = {"4XX": MESSAGE_FAULT, "5XX": MESSAGE_FAULT}
MESSAGE_GENERATED: Documented = {200: GENERATED[200], **MESSAGE_ERRORS}
INVOKED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}
PROBED: Documented = {503: {"description": "Not ready, and why"}}


class ErrorDetail(msgspec.Struct, frozen=True):
    """The fields of OpenAI's errors. `code` is a name; the status is that of HTTP."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error."""

    error: ErrorDetail


class MessagesFault(msgspec.Struct, frozen=True):
    """The fields of Anthropic's errors."""

    type: str
    message: str


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """The body of an error of /v1/messages."""

    error: MessagesFault
    request_id: str
    type: str = "error"


class ApiError(HTTPException):
    """Ends a request with a status; `param` is the field at fault, if there is one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(status, message)
        self.param, self.code = param, code

    @property
    def body(self) -> ErrorBody:
        return error_body(self.status_code, self.detail, self.param, self.code)


def readable(message: str) -> str:
    """Escape unpaired surrogates, which a message may quote but UTF-8 cannot encode."""
    return message.encode("utf-8", "backslashreplace").decode()


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> ErrorBody:
    ours = status >= BROKEN
    kind = KINDS.get(status, "server_error" if ours else "invalid_request_error")
    code = code or CODES.get(status, "internal_error" if ours else "invalid_request")
    return ErrorBody(ErrorDetail(readable(message), kind, param, code))


def fault_of(body: ErrorBody) -> MessagesFault:
    """The error in the shape of Anthropic's."""
    detail = body.error
    kind = FAULT_KINDS.get(detail.code) or FAULT_KINDS.get(detail.type, detail.type)
    return MessagesFault(kind, detail.message)


def fault_body(body: ErrorBody, request_id: str) -> MessagesErrorBody:
    return MessagesErrorBody(fault_of(body), request_id)


def api_error_of(error: Exception, path: str = "") -> ApiError:
    """The response to an error, by whose fault it is."""
    prompt_field = next((name for route, name in FIELDS.items() if path.endswith(route)), None)
    match error:
        case ApiError():
            return error
        case HTTPException():
            return ApiError(error.status_code, error.detail)
        case QueueFull():
            return ApiError(TOO_MANY, str(error), code="queue_full")
        case PromptTooLong():
            code = "context_length_exceeded"
            return ApiError(BAD_REQUEST, str(error), param=prompt_field, code=code)
        case RequestError():
            words = WORD.findall(QUOTED.sub("", str(error)))
            named = next((one for one in words if one in NAMED_IN_ERRORS | PROMPT_WORDS), None)
            param = prompt_field if named in PROMPT_WORDS else named
            return ApiError(BAD_REQUEST, str(error), param=param)
        case EngineUnavailable():
            return ApiError(UNAVAILABLE, str(error), code="unhealthy")
        case EngineFailed():
            return ApiError(BROKEN, f"the engine failed: {error}", code="engine_failed")
        case _:
            return ApiError(BROKEN, "internal error; see the log of the server")


def malformed(request: Request, error: RequestValidationError) -> ApiError:
    """Report the first error in a body, a path or a query, with its place."""
    first = cast("dict[str, Any]", error.errors()[0])
    kind = request.headers.get("content-type", "")
    if first["loc"][0] == "body" and "json" not in kind:
        problem = (
            f"the body must be JSON, sent as application/json; its type is {kind or 'missing'}"
        )
        return ApiError(BAD_REQUEST, problem, param="content-type")
    if first["type"] == "json_invalid":
        why = f"{first['ctx']['error']} at character {first['loc'][1]}"
        return ApiError(BAD_REQUEST, f"the body is not valid JSON: {why}", code="json_invalid")
    place = [str(step) for step in first["loc"][1:]]
    if not place:
        return ApiError(BAD_REQUEST, f"the body must be a JSON object: {first['msg']}")
    return ApiError(BAD_REQUEST, f"{'.'.join(place)}: {first['msg']}", param=place[0])


def unreadable(why: BaseException | None) -> ApiError | None:
    """The response to a body that cannot be read although its syntax may be right."""
    match why:
        case UnicodeDecodeError():
            place = f"byte {why.start} is 0x{why.object[why.start]:02x}"
            problem = f"it is not {why.encoding.upper()}: {place}"
        case RecursionError():
            problem = "its arrays and objects are nested too deeply"
        case ValueError():
            problem = f"a number has more than {sys.get_int_max_str_digits()} digits"
        case _:
            return None
    return ApiError(BAD_REQUEST, f"the body cannot be read: {problem}", code="json_invalid")


def unknown_route(request: Request, status: int, routes: Routes) -> ApiError:
    """Name the nearest route, or the methods of the route."""
    path = request.url.path
    if status == WRONG_METHOD:
        methods = " or ".join(sorted(routes.get(path, ())))
        use = f"; use {methods}" if methods else ""
        return ApiError(status, f"{path} does not take {request.method}{use}")
    close = get_close_matches(path, routes, 1, 0.5)
    hint = f"; did you mean {close[0]}?" if close else "; GET /openapi.json lists the routes"
    return ApiError(status, f"there is no route {path}{hint}", code="unknown_route")


def error_response(api_error: ApiError, path: str, request_id: str = "") -> Response:
    """The body has the shape of the API that the path belongs to. Anthropic's has an id always."""
    body = api_error.body
    is_message = MESSAGES in path
    request_id = request_id or (f"req-{random_id()}" if is_message else "")
    own = {"X-Request-Id": request_id} if request_id else {}
    return Response(
        msgspec.json.encode(fault_body(body, request_id) if is_message else body),
        api_error.status_code,
        headers={**(api_error.headers or {}), **own},
        media_type="application/json",
    )


def id_of(request: Request) -> str:
    """The id that the log has, or else the one that the client sent, or nothing."""
    return request.scope.get("state", {}).get(ID) or sent_id(request.headers)


def answer_errors(app: FastAPI, retry_after: Callable[[], int], routes: Routes) -> None:
    """Give every error a response, with `Retry-After` where a retry may succeed."""

    def api_error_for(request: Request, error: Exception) -> ApiError:
        match error:
            case HTTPException(status_code=404 | 405 as status) if not isinstance(error, ApiError):
                return unknown_route(request, status, routes)
            case HTTPException():  # FastAPI keeps the cause of an error in a body
                return unreadable(error.__cause__) or api_error_of(error)
            case _:
                return api_error_of(error, request.url.path)

    async def refuse(request: Request, error: Exception) -> Response:
        api_error = api_error_for(request, error)
        if api_error.status_code in (TOO_MANY, UNAVAILABLE) and api_error.headers is None:
            api_error.headers = {"Retry-After": str(retry_after())}
        if isinstance(error, HTTPException) and api_error is not error:
            api_error.headers = error.headers
        return error_response(api_error, request.url.path, id_of(request))

    async def refuse_malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        api_error = malformed(request, error)
        return error_response(api_error, request.url.path, id_of(request))

    answers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: refuse,
        RequestError: refuse,
        EngineFailed: refuse,
        Exception: refuse,
        RequestValidationError: refuse_malformed,
    }
    for kind, reply in answers.items():
        app.add_exception_handler(kind, reply)
