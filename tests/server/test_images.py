"""Images over HTTP, in the three forms of conversations, on a small model."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from paceline.engine.streaming import StreamingEngine
from paceline.server.app import create_app
from paceline.wiring.assembly import build
from tests.golden.image_models import image_model
from tests.golden.image_sizes import random_image
from tests.golden.test_images import TIGHT, their_tokens
from tests.images.support import file_of

PICTURE = random_image(40, 40)
DATA = b64encode(file_of(PICTURE)).decode()
URL = f"data:image/png;base64,{DATA}"
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def play(scene: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        folder = image_model("SmolVLM").folder
        components = build(str(folder), device="cpu", **TIGHT)
        engine = StreamingEngine.of(components)
        app = create_app(engine, "small", components.tokenizer)
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                await scene(client)
        finally:
            await engine.shutdown()

    asyncio.run(main())


def chat(url: str, **fields: Any) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [image, {"type": "text", "text": "what?"}]
    return {"messages": [{"role": "user", "content": content}], **GREEDY, **fields}


async def text_of_chat(client: httpx.AsyncClient) -> str:
    """The answer of a chat, which is what transformers generates."""
    asked = chat(URL, return_token_ids=True)
    answer = (await client.post("/v1/chat/completions", json=asked)).json()
    choice = answer["choices"][0]
    expected = their_tokens(image_model("SmolVLM"), answer["prompt_token_ids"], [PICTURE])
    assert choice["token_ids"] == expected[:8]
    counted = (await client.post("/tokenize", json=chat(URL))).json()
    assert counted["tokens"] == answer["prompt_token_ids"]
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    return choice["message"]["content"]


def test_three_forms_of_a_conversation_have_the_same_answer() -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        said = await text_of_chat(client)
        parts = [
            {"type": "input_image", "image_url": URL},
            {"type": "input_text", "text": "what?"},
        ]
        asked: dict[str, Any] = {"input": [{"role": "user", "content": parts}], **GREEDY}
        response = (await client.post("/v1/responses", json=asked)).json()
        assert response["output"][0]["content"][0]["text"] == said
        source = {"type": "base64", "media_type": "image/png", "data": DATA}
        blocks = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
        asked = {"messages": [{"role": "user", "content": blocks}], **GREEDY}
        message = (await client.post("/v1/messages", json={"model": "small", **asked})).json()
        assert message["content"][0]["text"] == said
        used = message["usage"]
        counted = await client.post("/v1/messages/count_tokens", json={"model": "small", **asked})
        due = used["input_tokens"] + used["cache_read_input_tokens"]
        assert counted.json()["input_tokens"] == due == response["usage"]["input_tokens"]

    play(scene)


def test_a_broken_image_is_a_400_that_says_why() -> None:
    async def refusal(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        return answer.json()["error"]["message"]

    async def scene(client: httpx.AsyncClient) -> None:
        assert "no known format" in await refusal(client, chat("data:image/png;base64,AAAA"))
        assert "not base64" in await refusal(client, chat("data:image/png;base64,?"))
        assert "not fetched from" in await refusal(client, chat("http://example.com/a.png"))
        many = chat(URL)
        many["messages"][0]["content"] *= 17
        assert "17 images; the most is 16" in await refusal(client, many)
        empty = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
        assert "has no image" in await refusal(client, empty)

    play(scene)
