"""Gets files over HTTP: with a token where it belongs, and from where a transfer broke off."""

import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from paceline.core.errors import ConfigError
from paceline.hub.cache import beside
from paceline.hub.errors import FetchError

HUGGING_FACE = "https://huggingface.co"
TIMEOUT_S = 30.0
PAUSES_S = (0.5, 1.0, 2.0)  # before each further attempt
CHUNK_BYTES = 1 << 20

# Failures of the connection, which may not happen again. A disk that is full is none of them.
BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    ConnectionError,
    TimeoutError,
)
PASSING = (HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, HTTPStatus.TOO_MANY_REQUESTS)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file by its name, with what is known of its content beforehand."""

    name: str
    size_bytes: int | None
    sha256: str | None


class TokenStaysHome(urllib.request.HTTPRedirectHandler):
    """A redirection to another place does not take the token along."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            following.remove_header("Authorization")
        return following


class Site:
    """A place that serves files over HTTP, and the token it wants to see."""

    def __init__(self, endpoint: str, token: str | None = None) -> None:
        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise ConfigError(f"{endpoint!r} is no address to download from")
        self.endpoint = endpoint.rstrip("/")
        self._headers = {"User-Agent": "paceline"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._opener = urllib.request.build_opener(TokenStaysHome)

    @classmethod
    def hugging_face(cls, environ: Mapping[str, str] = os.environ) -> "Site":
        return cls(environ.get("HF_ENDPOINT") or HUGGING_FACE, environ.get("HF_TOKEN"))

    def json(self, path: str) -> Any:
        def get() -> Any:
            with self._open(path) as response:
                return json.loads(response.read())

        try:
            return self._insist(path, get)
        except (ValueError, RecursionError) as error:
            raise FetchError(f"{self.endpoint}{path} answers with no JSON: {error}") from None

    def download(
        self, path: str, file: RemoteFile, target: Path, report: Callable[[int], None]
    ) -> None:
        """Put the file in place once it is complete; what is there already is not asked for."""
        part = beside(target, ".part")
        try:
            self._insist(path, lambda: self._append(path, file, part, report))
        except ValueError as error:  # a length or an address that cannot be read
            raise FetchError(f"{self.endpoint}{path} cannot be had: {error}") from None
        if file.sha256 is not None and sha256(part) != file.sha256:
            part.unlink()
            raise FetchError(f"{file.name} arrived damaged: its SHA-256 is not {file.sha256}")
        os.replace(part, target)

    def _append(
        self, path: str, file: RemoteFile, part: Path, report: Callable[[int], None]
    ) -> None:
        done = part.stat().st_size if part.exists() else 0
        if done and done == file.size_bytes:
            return
        try:
            response = self._open(path, done)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # it is longer than the file; begin again
            raise
        with response:
            if response.status != HTTPStatus.PARTIAL_CONTENT:
                done = 0
            length = response.headers.get("Content-Length")
            with part.open("ab" if done else "wb") as copy:
                total = file.size_bytes if length is None else done + int(length)
                while chunk := response.read(CHUNK_BYTES):
                    copy.write(chunk)
                    done += len(chunk)
                    report(done)
        if total is not None and done < total:
            raise ConnectionError(f"{done} of {total} bytes arrived")
        if file.size_bytes not in (None, done):
            part.unlink()
            raise FetchError(f"{file.name} has {done} bytes; {file.size_bytes} were promised")

    def _open(self, path: str, done: int = 0) -> http.client.HTTPResponse:
        ranged = {"Range": f"bytes={done}-"} if done else {}
        request = urllib.request.Request(self.endpoint + path, headers=self._headers | ranged)
        return self._opener.open(request, timeout=TIMEOUT_S)

    def _insist(self, path: str, work: Callable[[], T]) -> T:
        """Try again while there is hope."""
        for pause_s in (*PAUSES_S, None):
            try:
                return work()
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code not in PASSING:
                    raise FetchError(f"{self.endpoint}{path}: {reason(error)}") from None
                failure: Exception = error
            except BROKEN as error:
                failure = error
            if pause_s is None:
                raise FetchError(f"{self.endpoint}{path} cannot be had: {failure}")
            time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")


def reason(error: urllib.error.HTTPError) -> str:
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "it is not there, or needs a token that may read it (HF_TOKEN)"
    return f"{error.code} {error.reason}"


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
