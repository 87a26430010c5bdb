"""Conversations in Anthropic's form, driven by Anthropic's own client."""

import asyncio
import json
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from paceline.server.settings import ServerSettings
from tests.engine.support import tokenizer
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server, paced

PATH = "/v1/messages"
SAID: list[Any] = [{"role": "user", "content": "the quick"}]
BODY: dict[str, Any] = {"messages": SAID, "max_tokens": 4}
GREEDY = {"temperature": 0}


def client(site: Site, key: str = "none") -> AsyncAnthropic:
    return AsyncAnthropic(base_url=site.url, api_key=key, max_retries=0)


def events(text: str) -> list[tuple[str, Any]]:
    """The name and the body of each event."""
    found = [event.split("\n") for event in text.split("\n\n") if event]
    return [(name.removeprefix("event: "), json.loads(body[6:])) for name, body in found]


def test_the_client_gets_a_message(on: Play) -> None:
    async def scenario(site: Site) -> None:
        async with client(site) as own:
            message = await own.messages.create(
                model=MODEL, messages=SAID, max_tokens=6, system="Be brief.", extra_body=GREEDY
            )
        chat = [{"role": "system", "content": "Be brief."}, *SAID]
        asked = {"messages": chat, "max_tokens": 6, "temperature": 0}
        same = (await site.post("/v1/chat/completions", **asked)).json()
        (block,) = message.content
        assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
        assert block.type == "text"
        assert block.text == same["choices"][0]["message"]["content"]
        assert message.stop_reason in ("max_tokens", "end_turn")
        used = message.usage
        parts = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
        assert used.input_tokens + sum(parts) == same["usage"]["prompt_tokens"]
        assert used.output_tokens == same["usage"]["completion_tokens"]

    on(scenario)


def test_the_client_reads_a_stream(on: Play) -> None:
    async def scenario(site: Site) -> None:
        blocks = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
        asked: dict[str, Any] = {
            "model": MODEL,
            "messages": SAID,
            "max_tokens": 8,
            "system": blocks,
            "extra_body": GREEDY,
        }
        async with client(site) as own:
            whole = await own.messages.create(**asked)
            async with own.messages.stream(**asked) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                last = await stream.get_final_message()
        assert [block.text for block in whole.content if block.type == "text"] == [text]
        assert (last.stop_reason, last.usage.output_tokens) == (
            whole.stop_reason,
            whole.usage.output_tokens,
        )

    on(scenario)


def test_events_come_in_the_order_of_the_api(on: Play) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(PATH, **BODY, stream=True)
        assert response.headers["content-type"].startswith("text/event-stream")
        told = events(response.text)
        assert all(body["type"] == name for name, body in told)
        names = [name for name, _ in told if name != "content_block_delta"]
        assert names == [
            *("message_start", "content_block_start", "ping"),
            *("content_block_stop", "message_delta", "message_stop"),
        ]
        start = told[0][1]["message"]
        assert (start["content"], start["stop_reason"]) == ([], None)
        assert start["usage"]["input_tokens"] > 0
        assert told[-2][1]["usage"]["output_tokens"] == 4
        assert told[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}

    on(scenario)


def test_a_message_says_why_it_ended(on: Play) -> None:
    async def scenario(site: Site) -> None:
        body = {**BODY, "max_tokens": 60, "temperature": 0}
        text = (await site.post(PATH, **body)).json()["content"][0]["text"]
        stop = next(letter for letter in text if letter.isascii() and letter.isalpha())
        stopped = (await site.post(PATH, **body, stop_sequences=[stop])).json()
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
        assert stopped["content"][0]["text"] == text[: text.index(stop)]
        long = {"role": "user", "content": "the " * 100}
        full = (await site.post(PATH, messages=[long], max_tokens=5000)).json()
        assert full["stop_reason"] in ("model_context_window_exceeded", "end_turn")

    on(scenario)


def test_only_the_same_salt_shares_cached_prefixes(on: Play) -> None:
    async def scenario(site: Site) -> None:
        cached, created = list[int](), list[int]()
        for salt in ("messages", "messages", "another"):
            got = (await site.post(PATH, **BODY, cache_salt=salt)).json()
            cached.append(got["usage"]["cache_read_input_tokens"])
            created.append(got["usage"]["cache_creation_input_tokens"])
        assert cached[1] > 0
        assert cached[0] == cached[2] == 0
        assert created == [cached[1], 0, cached[1]]

    on(scenario)


def test_tokens_are_counted(on: Play) -> None:
    async def scenario(site: Site) -> None:
        async with client(site) as own:
            counted = await own.messages.count_tokens(model=MODEL, messages=SAID, system="Hi")
        chat = [{"role": "system", "content": "Hi"}, *SAID]
        ids = (await site.post("/tokenize", messages=chat)).json()["tokens"]
        assert counted.input_tokens == len(ids)
        assert tokenizer().decode(ids)

    on(scenario)


@pytest.mark.parametrize(
    ("extra", "status", "kind", "reason"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "empty"),
        ({"messages": [{"role": "system", "content": "a"}]}, 400, "invalid_request_error", "role"),
        (
            {"messages": [*SAID, {"role": "assistant", "content": [{"type": "tool_use"}]}]},
            *(400, "invalid_request_error", "cannot be continued"),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            *(400, "invalid_request_error", "the source of an image must be base64"),
        ),
        ({"tools": [{"name": "f"}]}, 400, "invalid_request_error", "tools[0] must be"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "thinking"),
        ({"output_format": {"type": "json"}}, 400, "invalid_request_error", "output_format"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            *(400, "invalid_request_error", "output_config.format has no schema"),
        ),
        ({"output_config": {"effort": "huge"}}, 400, "invalid_request_error", "huge"),
        ({"context_management": {}}, 400, "invalid_request_error", "context_management"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"temperature": -9}, 400, "invalid_request_error", "temperature"),
        ({"model": "other"}, 404, "not_found_error", "other"),
    ],
)
def test_errors_have_the_shape_of_the_api(
    on: Play, extra: dict[str, Any], status: int, kind: str, reason: str
) -> None:
    async def scenario(site: Site) -> None:
        headers = {"X-Request-Id": "mine"}
        response = await site.http.post(PATH, json={**BODY, **extra}, headers=headers)
        told = response.json()
        assert (response.status_code, told["type"]) == (status, "error")
        assert (told["error"]["type"], told["request_id"]) == (kind, "mine")
        assert reason in told["error"]["message"]
        assert told["error"].keys() == {"type", "message"}

    on(scenario)


@pytest.mark.parametrize(
    "content", ["The capital is", [{"type": "text", "text": "The capital is"}]]
)
def test_a_last_message_of_the_assistant_is_continued(on: Play, content: Any) -> None:
    async def scenario(site: Site) -> None:
        talk = [*SAID, {"role": "assistant", "content": content}]
        got = (await site.post(PATH, **{**BODY, "messages": talk}, **GREEDY)).json()
        continued = {"continue_final_message": True, "max_tokens": 4, **GREEDY}
        same = await site.post("/v1/chat/completions", messages=talk, **continued)
        assert got["content"][0]["text"] == same.json()["choices"][0]["message"]["content"]
        counted = (await site.post(f"{PATH}/count_tokens", messages=talk)).json()["input_tokens"]
        assert counted == same.json()["usage"]["prompt_tokens"]

    on(scenario)


def test_every_error_has_an_id(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for extra in ({"max_tokens": "many"}, {"temperature": -9}, {"messages": []}):
            response = await site.post(PATH, **{**BODY, **extra})
            assert response.status_code == 400
            assert response.json()["request_id"] == response.headers["x-request-id"] != ""

    on(scenario)


def test_what_asks_for_nothing_is_taken(on: Play) -> None:
    async def scenario(site: Site) -> None:
        extra: dict[str, Any] = {
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "none"},
            "thinking": {"type": "disabled"},
            "metadata": {"user_id": "ann"},
            "top_k": 5,
            "top_p": 0.9,
            "stop_sequences": [],
            "service_tier": "auto",
        }
        assert (await site.post(PATH, **BODY, **extra)).status_code == 200

    on(scenario)


def test_the_client_sends_its_key_in_a_header_of_its_own() -> None:
    async def scenario(site: Site) -> None:
        async with client(site, "secret") as own, client(site, "wrong") as other:
            asked: dict[str, Any] = {"model": MODEL, **BODY}
            assert (await own.messages.create(**asked)).usage.output_tokens == 4
            with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
                await other.messages.create(**asked)

    on_its_own_server(scenario, ServerSettings(api_keys=("secret",)))


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_is_cut_short_is_an_error(stream: bool) -> None:
    async def scenario(site: Site) -> None:
        headers = {"X-Request-Id": "mine"}
        body = {**BODY, "max_tokens": 200, "stream": stream}
        asking = asyncio.create_task(site.http.post(PATH, json=body, headers=headers))
        await site.until_told()
        await site.post("/abort_requests", request_ids=["mine"])
        response = await asking
        told = events(response.text)[-1][1] if stream else response.json()
        assert response.status_code == (200 if stream else 503)
        assert told["type"] == "error"
        assert told["error"]["message"] == "the request was aborted"

    on_its_own_server(scenario, breaks=paced)
