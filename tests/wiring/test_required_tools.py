"""A real, tiny model must call tools where a request asks for it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from paceline.llm import AsyncLLM
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from paceline.text.tokenizer import Tokenizer
from tests.wiring.support import DESCRIBED, dummy_model

END = "</s>"
TEMPLATE = (
    "{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}{{ message.content }} {% endfor %}<tool_call>"
)
# It shows no tools, and no calls.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["on", "kind"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("a", "b")
]
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "go"}],
    "tools": TOOLS,
    "parallel_tool_calls": False,
    "max_tokens": 200,
    "seed": 5,
}


def model_of_bytes(folder: Path, template: str = TEMPLATE) -> Path:
    found = dummy_model(folder)
    (found / "config.json").write_text(json.dumps({**DESCRIBED, "max_position_embeddings": 2048}))
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    backend = Backend(models.BPE({word: id for id, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    backend.save(str(found / "tokenizer.json"))
    words_of = {"eos_token": END, "chat_template": template}
    (found / "tokenizer_config.json").write_text(json.dumps(words_of))
    return found


def called(answer: httpx.Response, name: str | None = None) -> list[Any]:
    """The calls of an answer, whose arguments match their schema."""
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    for choice in choices:
        assert choice["finish_reason"] == "tool_calls", choice
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] in ((name,) if name else ("a", "b"))
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    return choices


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN_TEMPLATE])
def test_calls_that_are_required_are_made(tmp_path: Path, template: str) -> None:
    async def chat(http: httpx.AsyncClient) -> None:
        path = "/v1/chat/completions"
        assert len(called(await http.post(path, json={**CHAT, "tool_choice": "required"}))) == 1
        named = {"type": "function", "function": {"name": "b"}}
        several = {**CHAT, "tool_choice": named, "n": 3}
        assert len(called(await http.post(path, json=several), "b")) == 3

    async def others(http: httpx.AsyncClient) -> None:
        flat = [{"type": "function", **TOOLS[0]["function"]}]
        body = {"input": "go", "tools": flat, "tool_choice": "required", "max_output_tokens": 200}
        (item,) = (await http.post("/v1/responses", json=body)).json()["output"][:1]
        assert (item["type"], item["name"]) == ("function_call", "a")
        own = [{"name": "b", "input_schema": SCHEMA}]
        talk = {"messages": CHAT["messages"], "tools": own, "max_tokens": 200}
        found = await http.post("/v1/messages", json={**talk, "tool_choice": {"type": "any"}})
        assert found.json()["content"][0]["name"] == "b"
        jsonschema.validate(found.json()["content"][0]["input"], SCHEMA)

    async def streamed(http: httpx.AsyncClient) -> None:
        body = {**CHAT, "tool_choice": "required", "stream": True, "reasoning_effort": "none"}
        answer = await http.post("/v1/chat/completions", json=body)
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines if line != "[DONE]"]
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
        written = "".join(call.get("arguments", "") for call in calls)
        jsonschema.validate(json.loads(written), SCHEMA)

    async def described(http: httpx.AsyncClient) -> None:
        """`none` describes nothing. A call and its result are shown."""
        path = "/v1/chat/completions"
        body = {**CHAT, "max_tokens": 1}
        plain = {key: one for key, one in body.items() if key != "tools"}
        sizes = [
            (await http.post(path, json=one)).json()["usage"]["prompt_tokens"]
            for one in (plain, {**body, "tool_choice": "none"}, body)
        ]
        assert sizes[0] == sizes[1] < sizes[2] - 200
        call = {"id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}
        told = [
            *body["messages"],
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]
        answer = (await http.post(path, json={**plain, "messages": told})).json()
        assert answer["usage"]["prompt_tokens"] > sizes[0] + len("<tool_call></tool_call>")

    plays_of: dict[str, Any] = {
        TEMPLATE: (("hermes", (chat, others)), ("json", (chat,))),
        PLAIN_TEMPLATE: (("auto", (chat, others, streamed, described)),),
    }

    async def main() -> None:
        folder = model_of_bytes(tmp_path, template)
        settings: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01}
        async with AsyncLLM(str(folder), max_num_seqs=4, **settings) as engine:
            for parser, plays in plays_of[template]:
                parsers = ServerSettings(tool_call_parser=parser)
                app = create_app(engine, "tiny", Tokenizer.load(folder), parsers)
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://tiny") as http:
                    for play in plays:
                        await play(http)

    asyncio.run(main())
