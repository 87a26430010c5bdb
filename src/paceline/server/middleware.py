"""Middleware around all routes: keys, sizes, HEAD, request ids and the path of a proxy."""

import asyncio
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.client_headers import TENANT, random_id, sent_id
from paceline.server.errors import (
    HEAD_TOO_LARGE,
    TOO_LARGE,
    TOO_SLOW,
    UNAUTHORIZED,
    ApiError,
    error_response,
)
from paceline.server.live.page_routes import open_paths
from paceline.server.settings import ServerSettings

OPEN_PATHS = frozenset({"/health", "/ready", "/readyz", "/ping", "/metrics"})
DOCS_PATH = "/docs"
FILES_PATH = "/v1/files"
DOCS_PATHS = frozenset({DOCS_PATH, "/openapi.json"})  # a browser that opens them sends no key


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Most bytes of a body, and the setting that says so."""

    setting: str
    most: int

    def error(self) -> ApiError:
        return ApiError(TOO_LARGE, f"the body has more than {self.most} bytes ({self.setting})")


class RequestGuard:
    """Refuses requests without a valid API key, if keys are set, and requests that are too large.

    Every key is compared, by its digest, so that the time reveals nothing about the keys.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings
        self._keys = {sha256(key.encode()).digest(): "" for key in settings.api_keys}
        self._keys |= {
            sha256(key.encode()).digest(): name for name, key in settings.keys_of_tenants
        }
        self._open_paths = OPEN_PATHS | DOCS_PATHS if settings.docs else OPEN_PATHS
        if settings.dashboard:
            self._open_paths |= open_paths()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif api_error := self._check(scope):
            await error_response(api_error, scope["path"])(scope, receive, send)
        else:
            bounded = BoundedBody(receive, self._most_bytes(scope), self._settings.body_s)
            await self._app(scope, bounded, send)

    def _most_bytes(self, scope: Scope) -> BodyLimit:
        """The largest body: that of a file, or of other requests."""
        if scope["path"] == FILES_PATH and self._settings.files_dir:
            return BodyLimit("file_bytes", self._settings.file_bytes)
        return BodyLimit("body_bytes", self._settings.body_bytes)

    def _check(self, scope: Scope) -> ApiError | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._settings.header_bytes:
            limit = self._settings.header_bytes
            return ApiError(
                HEAD_TOO_LARGE, f"the headers have more than {limit} bytes (header_bytes)"
            )
        given = dict(headers)
        length = given.get(b"content-length", b"")
        limit = self._most_bytes(scope)
        if length.isdigit() and int(length[:20]) > limit.most:
            return limit.error()
        if not self._keys or scope["path"] in self._open_paths:
            return None
        tenant = self._tenant(given)
        if tenant is None:
            return ApiError(
                UNAUTHORIZED,
                "the API key is missing or wrong; send 'Authorization: Bearer KEY'",
                code="invalid_api_key",
            )
        if tenant:
            scope.setdefault("state", {})[TENANT] = tenant
        return None

    def _tenant(self, headers: dict[bytes, bytes]) -> str | None:
        """Whose key a client has; "": it belongs to no tenant. None: it is missing or wrong."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if own := headers.get(b"x-api-key"):  # as clients of /v1/messages send it
            scheme, key = b"bearer", own
        digest = sha256(key.strip()).digest()
        found = [name for known, name in self._keys.items() if compare_digest(digest, known)]
        return found[0] if found and scheme.lower() == b"bearer" else None


class NumberedResponses:
    """Sends `X-Request-Id` with responses that have none: the client's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Request-Id", sent_id(Headers(scope=scope)) or random_id())
            await send(message)

        await self._app(scope, receive, send_id if scope["type"] == "http" else send)


class PathBelow:
    """Takes `root` off the path of requests, if a proxy has not done so."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, root = scope["path"], self._root
            path = path.removeprefix(root) if path.startswith(root + "/") else path
            scope = {**scope, "path": path, "root_path": root}
        await self._app(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as it answers GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_head(message: Message) -> None:
            is_body = message["type"] == "http.response.body"
            await send({**message, "body": b""} if is_body else message)

        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, send_head)
        else:
            await self._app(scope, receive, send)


class BoundedBody:
    """Receives a body up to its limit; after that, it waits for the disconnect."""

    def __init__(self, receive: Receive, limit: BodyLimit, body_s: float) -> None:
        self._receive, self._limit, self._body_s = receive, limit, body_s
        self._drained = limit.most
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._body_s):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                TOO_SLOW, f"no part of the body arrived within {self._body_s:g} s (body_s)"
            ) from None
        self._drained -= len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._drained < 0:
            raise self._limit.error()
        return message
