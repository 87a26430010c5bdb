"""Texts of a model that calls tools and reasons, fed to a server in pieces."""

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

import httpx

from paceline.engine.api import Alternative, TextDelta, TokenLogprob
from paceline.server.settings import ServerSettings
from tests.server.fed import FedSite, FedStream

HERMES = ServerSettings(tool_call_parser="hermes", reasoning_parser="qwen3")
TALK = [{"role": "user", "content": "Will it rain in Zürich?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "look"}},
]
ARGUMENTS = '{"city": "Zürich 🌧️", "days": [1, {"a": "}"}]}'
THOUGHT = "I need the weather;\n<tool_call> is for that."
CALLS = (
    f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
SCORED = TokenLogprob(Alternative(4, -0.5, "a", b"a"), ())
TEXT = f"<think>\n{THOUGHT}\n</think>\n\nLet me look.\n{CALLS}"


def pieces(text: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(0, 12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


async def feed(
    stream: FedStream, texts: Mapping[int, str], seed: int = 0, reason: Any = "stop"
) -> None:
    """Feed the text of each choice in random pieces, the choices in turn."""
    chance = random.Random(seed)
    waiting = [(index, iter(pieces(text, chance))) for index, text in texts.items()]
    while waiting:
        index, rest = chance.choice(waiting)
        piece = next(rest, None)
        if piece is None:
            waiting.remove((index, rest))
        else:
            scores = None if stream.generation.params.logprobs is None else (SCORED,)
            stream.put(TextDelta(index, piece, (4,), scores))
            if chance.random() < 0.3:
                await asyncio.sleep(0)
    stream.end(reason)


async def answered(
    site: FedSite, path: str, body: dict[str, Any], texts: Mapping[int, str] | str, **how: Any
) -> httpx.Response:
    """The response to a request whose choices get these texts."""
    port = site.server.servers[0].sockets[0].getsockname()[1]
    given = {0: texts} if isinstance(texts, str) else texts
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20.0) as http:
        asking = asyncio.create_task(http.post(path, json=body))
        await site.until(lambda: bool(site.engine.streams) or asking.done())
        if site.engine.streams:
            (stream,) = await site.streams()
            await feed(stream, given, **how)
        return await asking


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of the events of a stream, without the marker of its end."""
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    found = [line.removeprefix("data: ") for line in lines]
    return [json.loads(one) for one in found if one != "[DONE]"]
