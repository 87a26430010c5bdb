"""One streaming request to an OpenAI-compatible server, timed by its client."""

import json
from dataclasses import dataclass
from textwrap import shorten
from time import perf_counter
from typing import Any

import httpx

from paceline.bench.samples import Sample
from paceline.workloads.call import Call, token_ids, words

EVENT = "data: "
DONE = "[DONE]"
OK = 200
MOST_CHARACTERS = 200  # of an error message
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and how their bodies are made."""

    model: str
    endpoint: str  # completions: prompts are token ids, of exact lengths; chat: they are words
    vocab_size: int
    seed: int
    ignore_eos: bool

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(self, call: Call) -> dict[str, Any]:
        common: dict[str, Any] = {
            "model": self.model,
            "max_tokens": call.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            common["ignore_eos"] = True
        if self.endpoint == "chat":
            return common | {"messages": [{"role": "user", "content": words(call, self.seed)}]}
        return common | {"prompt": token_ids(call, self.vocab_size, self.seed)}


class Failure(Exception):
    """A failed request: the kind of the failure, and the message of the server."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(kind)
        self.message = message


class Reading:
    """The state of one stream."""

    def __init__(self, call: Call) -> None:
        self.pieces: list[float] = []
        self.prompt_tokens, self.output_tokens = call.input_len, 0
        self.whole = False

    def take(self, line: str) -> None:
        if not line.startswith(EVENT):
            return
        if line == EVENT + DONE:
            self.whole = True
            return
        event = json.loads(line.removeprefix(EVENT))
        if event.get("error"):
            raise Failure("error in the stream", message_of(event))
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.output_tokens = usage["completion_tokens"]
        if any(has_text(choice) for choice in event.get("choices", ())):
            self.pieces.append(perf_counter())

    def check(self) -> None:
        if not self.whole:
            raise Failure("cut off")
        if not self.pieces:
            raise Failure("no text")
        # Without a usage, each piece counts as one token.
        self.output_tokens = self.output_tokens or len(self.pieces)


def message_of(body: Any) -> str:
    """The message of an error, shortened to one line; empty if there is none."""
    match body:
        case {"error": {"message": str(message)}} | {"error": str(message)}:
            return shorten(message, MOST_CHARACTERS)
        case _:
            return ""


def parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def has_text(choice: dict[str, Any]) -> bool:
    delta: dict[str, Any] = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content"))


async def timed(
    http: httpx.AsyncClient, target: Target, call: Call, begun: float, planned_s: float
) -> Sample:
    """Send a request and read its stream; times count from `begun`."""
    body = json.dumps(target.body(call)).encode()
    headers = {"Content-Type": "application/json"}
    reading, error, message = Reading(call), "", ""
    sent = perf_counter()
    try:
        async with http.stream("POST", target.path, content=body, headers=headers) as response:
            if response.status_code != OK:
                said = message_of(parsed(await response.aread()))
                raise Failure(f"status {response.status_code}", said)
            async for line in response.aiter_lines():
                reading.take(line)
        reading.check()
    except Failure as failure:
        error, message = str(failure), failure.message
    except httpx.TimeoutException:
        error = "timeout"
    except httpx.ConnectError:
        error = "no connection"
    except httpx.HTTPError:
        error = "connection closed"
    except (ValueError, KeyError, TypeError, AttributeError):
        error = "malformed response"
    return Sample(
        planned_s,
        sent - begun,
        tuple(at - begun for at in reading.pieces),
        perf_counter() - begun,
        reading.prompt_tokens,
        reading.output_tokens,
        error,
        message,
    )
