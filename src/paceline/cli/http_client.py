"""A server elsewhere: how it is asked, and what it complains about."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx

from paceline.cli.chat_backend import Manner, Said
from paceline.cli.options import bearer, root
from paceline.core.errors import PacelineError

EVENT = "data: "
DONE = "[DONE]"
FINE = 200
PATIENCE_S = 30.0


class Unreachable(PacelineError):
    """A server that does not answer, or answers with an error."""


class ServerPartner:
    """Talks to an OpenAI-compatible server, to the first model that it names."""

    def __init__(self, url: str, key: str | None, model: str | None) -> None:
        self._http = httpx.AsyncClient(base_url=root(url), headers=bearer(key), timeout=None)
        self._url, self._model = root(url), model

    @property
    def name(self) -> str:
        return self._model or self._url

    async def meet(self) -> None:
        """Find out which model there is."""
        try:
            response = await self._http.get("/v1/models")
            check(response.status_code, response.text)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._url} does not answer: {error}") from None
        try:
            self._model = self._model or response.json()["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            raise Unreachable(f"{self._url}/v1/models names no model") from None

    async def answer(
        self, messages: Sequence[Mapping[str, str]], manner: Manner
    ) -> AsyncGenerator[Said, None]:
        body = {
            "model": self._model,
            "messages": messages,
            "temperature": manner.temperature,
            "max_tokens": manner.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with self._http.stream("POST", "/v1/chat/completions", **sent(body)) as response:
                if response.status_code != FINE:
                    check(response.status_code, (await response.aread()).decode())
                async for line in response.aiter_lines():
                    if line.startswith(EVENT) and line != EVENT + DONE:
                        yield said(json.loads(line.removeprefix(EVENT)))
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._url} hung up: {error}") from None

    async def close(self) -> None:
        await self._http.aclose()


def fetched(url: str, path: str, key: str | None) -> str:
    """The text behind a path of a server."""
    try:
        response = httpx.get(root(url) + path, headers=bearer(key), timeout=PATIENCE_S)
    except httpx.HTTPError as error:
        raise Unreachable(f"{root(url)} does not answer: {error}") from None
    check(response.status_code, response.text)
    return response.text


def sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """For httpx, whose own JSON has no halves of surrogate pairs: let the server decide."""
    return {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}


def said(event: dict[str, Any]) -> Said:
    if event.get("error"):
        raise Unreachable(event["error"]["message"])
    usage: dict[str, Any] = event.get("usage") or {}
    choices: list[dict[str, Any]] = event.get("choices") or [{}]
    delta: dict[str, Any] = choices[0].get("delta") or {}
    return Said(delta.get("content") or "", usage.get("completion_tokens", 0))


def check(status: int, body: str) -> None:
    """Raise what a server complains about, in its own words where it has some."""
    if status == FINE:
        return
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.strip() or "no reason given"
    raise Unreachable(f"the server answers with status {status}: {message}")
