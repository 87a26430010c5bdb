"""Requests to a server, and the errors it answers with."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from paceline.cli.backend import AnswerPiece, Params, Prompt
from paceline.cli.options import bearer, root
from paceline.core.errors import PacelineError

EVENT = "data: "
DONE = "[DONE]"
OK = 200
NO_KEY = 401
TIMEOUT_S = 30.0


class ServerError(PacelineError):
    """A server does not answer, or answers with an error."""


class ServerBackend:
    """Asks an OpenAI-compatible server, by default for the first model it lists."""

    def __init__(self, url: str, key: str | None, model: str | None) -> None:
        self._http = httpx.AsyncClient(base_url=root(url), headers=bearer(key), timeout=None)
        self._url, self._model = root(url), model

    @property
    def name(self) -> str:
        return self._model or self._url

    async def connect(self) -> None:
        """Check that the server answers, and find its model."""
        found = await first_model(self._http)
        self._model = self._model or found

    async def answer(self, prompt: Prompt, params: Params) -> AsyncGenerator[AnswerPiece, None]:
        is_text = isinstance(prompt, str)
        path = "/v1/completions" if is_text else "/v1/chat/completions"
        body = {
            "model": self._model,
            "prompt" if is_text else "messages": prompt,
            **params,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with self._http.stream("POST", path, **json_body(body)) as response:
                if response.status_code != OK:
                    check(response.status_code, (await response.aread()).decode())
                async for line in response.aiter_lines():
                    if line.startswith(EVENT) and line != EVENT + DONE:
                        yield piece_of(json.loads(line.removeprefix(EVENT)))
        except httpx.HTTPError as error:
            raise ServerError(f"{self._url} closed the connection: {error}") from None

    async def close(self) -> None:
        await self._http.aclose()


async def first_model(http: httpx.AsyncClient) -> str:
    """The first model that a server lists."""
    url = str(http.base_url).rstrip("/")
    try:
        response = await http.get("/v1/models")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise unreachable(url, error) from None
    check(response.status_code, response.text)
    try:
        return response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise ServerError(f"{url}/v1/models lists no model; set --model") from None


def fetched(url: str, path: str, key: str | None) -> str:
    """The text behind a path of a server."""
    try:
        response = httpx.get(root(url) + path, headers=bearer(key), timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise unreachable(root(url), error) from None
    check(response.status_code, response.text)
    return response.text


def unreachable(url: str, error: Exception) -> ServerError:
    return ServerError(
        f"{url} does not answer: {error}; start `paceline serve` there, or name another server "
        "with --url"
    )


def json_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Options of httpx for a JSON body. Its own encoder refuses unpaired surrogates, which the
    server should judge."""
    return {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}


def piece_of(event: dict[str, Any]) -> AnswerPiece:
    if event.get("error"):
        raise ServerError(event["error"]["message"])
    usage: dict[str, Any] = event.get("usage") or {}
    choices: list[dict[str, Any]] = event.get("choices") or [{}]
    choice = choices[0]
    delta: dict[str, Any] = choice.get("delta") or {}
    text: str = choice.get("text") or delta.get("content") or ""
    return AnswerPiece(text, usage.get("completion_tokens", 0), choice.get("index", 0))


def check(status: int, body: str) -> None:
    """Raise the error of an answer, with the server's own message if it has one."""
    if status == OK:
        return
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.strip() or "no reason given"
    if status == NO_KEY:  # the server's own message names a header
        message = "the API key is missing or wrong; give it with --api-key, or in PACELINE_API_KEY"
    raise ServerError(f"the server answers with status {status}: {message}")
