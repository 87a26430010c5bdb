"""Chats, through OpenAI's own client wherever it can say what is asked."""

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from paceline.engine.api import SamplingParams
from paceline.server.schemas.completions import IMPOSSIBLE, finite
from paceline.server.settings import ServerSettings
from paceline.text.chat_template import ChatTemplate
from tests.engine.support import expected, expected_text, tokenizer
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server

MESSAGES = [{"role": "user", "content": "hello world"}]


def answer(seed: int = 5, **params: object) -> tuple[list[int], str, str]:
    """Tokens, text and finish reason that any correct engine gives."""
    text = ChatTemplate.of(tokenizer()).render(MESSAGES)
    ids = tokenizer().encode(text, special=False)
    tokens, reason = expected(ids, SamplingParams(seed=seed, **params))  # type: ignore[arg-type]
    return tokens, expected_text(tokens, reason), reason


def test_a_chat_is_answered_whole(on: Play) -> None:
    async def scenario(site: Site) -> None:
        tokens, text, reason = answer(max_tokens=20)
        got = await site.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=20, seed=5
        )
        assert got.object == "chat.completion"
        assert got.model == MODEL
        assert got.choices[0].message.role == "assistant"
        assert got.choices[0].message.content == text
        assert got.choices[0].finish_reason == reason
        assert got.choices[0].logprobs is None
        assert got.usage is not None
        assert got.usage.completion_tokens == len(tokens)
        assert got.usage.total_tokens == got.usage.prompt_tokens + len(tokens)
        assert got.id.startswith("chatcmpl-")

    on(scenario)


def test_pieces_of_a_stream_add_up_and_end_with_usage(on: Play) -> None:
    async def scenario(site: Site) -> None:
        tokens, text, reason = answer(max_tokens=40)
        stream = await site.openai.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_completion_tokens=40,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[0].choices[0].delta.content == ""
        assert len(chunks) > 10
        told = [chunk.choices[0] for chunk in chunks[:-1]]
        assert "".join(choice.delta.content or "" for choice in told) == text
        assert [choice.finish_reason for choice in told] == [None] * (len(told) - 1) + [reason]
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert chunks[-1].choices == []
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.completion_tokens == len(tokens)
        assert {chunk.id for chunk in chunks} == {chunks[0].id}

    on(scenario)


def test_without_options_a_stream_says_nothing_of_usage(on: Play) -> None:
    async def scenario(site: Site) -> None:
        events = await site.events(
            "/v1/chat/completions", messages=MESSAGES, max_tokens=3, ignore_eos=True
        )
        assert not any("usage" in event or "timings" in event for event in events)
        assert all(event["choices"] for event in events)

    on(scenario)


def test_usage_may_be_told_in_every_chunk(on: Play) -> None:
    async def scenario(site: Site) -> None:
        events = await site.events(
            "/v1/chat/completions",
            messages=MESSAGES,
            max_tokens=9,
            ignore_eos=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts)
        assert counts[0] == 0
        assert counts[-1] == 9
        assert len({event["usage"]["prompt_tokens"] for event in events}) == 1

    on(scenario)


def test_two_choices_are_told_apart(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai
        whole = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=12, n=2, seed=3
        )
        assert [choice.index for choice in whole.choices] == [0, 1]
        texts = [choice.message.content for choice in whole.choices]
        assert texts[0] != texts[1]
        streamed = ["", ""]
        roles: list[int] = []
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=12, n=2, seed=3, stream=True
        ):
            (choice,) = chunk.choices
            streamed[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
        assert streamed == texts
        assert roles == [0, 1]

    on(scenario)


def test_logprobs_name_the_tokens_of_the_text(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai
        got = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=6,
            seed=5,
            logprobs=True,
            top_logprobs=3,
            extra_body={"ignore_eos": True},
        )
        logprobs = got.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == 6
        spelled = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content)
        assert spelled.decode(errors="replace") == got.choices[0].message.content
        assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
        assert all(entry.logprob <= 0 for entry in logprobs.content)
        streamed = 0
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, seed=5, logprobs=True, stream=True
        ):
            told = chunk.choices[0].logprobs
            streamed += len(told.content or ()) if told else 0
        assert streamed == 6

    on(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_returned_on_request(on: Play, stream: bool) -> None:
    async def scenario(site: Site) -> None:
        asked = {
            "messages": MESSAGES,
            "max_tokens": 6,
            "n": 2,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "logprobs": True,
        }
        events = await site.events("/v1/chat/completions", **asked) if stream else []
        events = events or [(await site.post("/v1/chat/completions", **asked)).json()]
        prompts = [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event]
        counted = (await site.post("/tokenize", messages=MESSAGES)).json()["tokens"]
        assert prompts == [counted]
        for index in range(2):
            choices = [one for event in events for one in event["choices"] if one["index"] == index]
            ids = [id for one in choices for id in one.get("token_ids", ())]
            told = [one["logprobs"]["content"] for one in choices if one["logprobs"]]
            assert len(ids) == 6
            assert [entry["token"] for one in told for entry in one] == [
                f"token_id:{id}" for id in ids
            ]

    on(scenario)


def test_timings_are_told_when_asked_for(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked = {"messages": MESSAGES, "max_tokens": 4, "ignore_eos": True, "timings": True}
        whole = (await site.post("/v1/chat/completions", **asked)).json()
        stages = {"queue_s", "prefill_s", "decode_s", "total_s", "cached_tokens", "preemptions"}
        assert whole["timings"].keys() == stages
        assert whole["timings"]["total_s"] >= whole["timings"]["decode_s"] > 0
        *_, last = await site.events("/v1/chat/completions", **asked)
        assert last["choices"] == []
        assert last["timings"].keys() == stages
        assert "usage" not in last

    on(scenario)


def test_whoever_wants_no_timings_has_none_where_others_do() -> None:
    async def scenario(site: Site) -> None:
        asked = {"messages": MESSAGES, "max_tokens": 1}
        told = [
            "timings" in (await site.post("/v1/chat/completions", **asked, **extra)).json()
            for extra in ({}, {"timings": True}, {"timings": False})
        ]
        assert told == [True, True, False]

    on_its_own_server(scenario, ServerSettings(timings=True))


def test_what_is_impossible_has_a_number_that_json_knows() -> None:
    assert [finite(value) for value in (-1.5, float("-inf"))] == [-1.5, IMPOSSIBLE]


def test_cached_tokens_are_told(on: Play) -> None:
    async def scenario(site: Site) -> None:
        cached: list[int] = []
        for salt in ("one", "one", "another"):
            asked = {"messages": MESSAGES, "max_tokens": 1, "cache_salt": salt, "timings": True}
            got = (await site.post("/v1/chat/completions", **asked)).json()
            cached.append(got["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert got["timings"]["cached_tokens"] == cached[-1]
        assert cached[0] == cached[2] == 0
        assert cached[1] > 0

    on(scenario)


def test_beams_and_best_of(on: Play) -> None:
    async def scenario(site: Site) -> None:
        beams = {"use_beam_search": True, "best_of": 3, "n": 2, "length_penalty": 0.5}
        for extra in (beams, {"best_of": 3, "n": 2}):
            body = {"messages": MESSAGES, "max_tokens": 5, **extra}
            whole = (await site.post("/v1/chat/completions", **body, seed=1)).json()
            assert len(whole["choices"]) == 2
            events = await site.events("/v1/chat/completions", **body, seed=1)
            texts = ["", ""]
            for event in events:
                choice = event["choices"][0]
                texts[choice["index"]] += choice["delta"].get("content", "")
            assert texts == [choice["message"]["content"] for choice in whole["choices"]]

    on(scenario)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": -1, "max_tokens": 5}, "max_completion_tokens"),
        ({"max_completion_tokens": 2**40}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stop": [""]}, "stop"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": "hello"}, "messages"),
    ],
)
def test_what_is_wrong_is_named(on: Play, extra: dict[str, object], param: str) -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(BadRequestError) as caught:
            await site.openai.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
                extra_body=extra,  # type: ignore[arg-type]
            )
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
        assert param in caught.value.message

    on(scenario)


CALL = {"function": {"name": "f", "arguments": "{"}}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": "x", "images": ["AAAA"]}],
        [{"role": "assistant", "content": "x", "audio": {"id": "a"}}],
        [{"role": "assistant", "tool_calls": [CALL]}],
    ],
)
def test_messages_that_cannot_be_read_are_named(on: Play, messages: list[Any]) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post("/v1/chat/completions", messages=messages)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")

    on(scenario)


def test_a_developer_is_the_system_to_a_template(on: Play) -> None:
    async def scenario(site: Site) -> None:
        texts = [
            (
                await site.post("/v1/chat/completions", messages=messages, max_tokens=9, seed=1)
            ).json()
            for role in ("system", "developer")
            for messages in [[{"role": role, "content": "Be brief."}, *MESSAGES]]
        ]
        one, other = (text["choices"][0]["message"]["content"] for text in texts)
        assert one == other

    on(scenario)


def test_an_unknown_model_is_not_found_and_unknown_fields_are_ignored(on: Play) -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(NotFoundError, match="gpt-9") as caught:
            await site.openai.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert caught.value.code == "model_not_found"
        response = await site.post(
            "/v1/chat/completions", messages=MESSAGES, max_tokens=1, colour="red", metadata={}
        )
        assert response.status_code == 200

    on(scenario)


def test_stop_strings_end_the_text_and_are_told(on: Play) -> None:
    async def scenario(site: Site) -> None:
        _, text, _ = answer(max_tokens=30)
        stop = text[8:11]
        whole = await site.post(
            "/v1/chat/completions", messages=MESSAGES, max_tokens=30, seed=5, stop=stop
        )
        (choice,) = whole.json()["choices"]
        assert choice["message"]["content"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert choice["stop_reason"] == stop

    on(scenario)


def test_a_model_without_a_template_refuses_to_chat(on: Play) -> None:
    async def scenario(site: Site) -> None:
        site.context.template = site.engine._frontend.template = ChatTemplate(None)
        with pytest.raises(BadRequestError, match="no chat template: set chat_template"):
            await site.openai.chat.completions.create(model=MODEL, messages=MESSAGES)
        got = await site.post("/tokenize", model=MODEL, messages=MESSAGES)
        assert got.status_code == 400
        assert "no chat template" in got.json()["error"]["message"]

    on_its_own_server(scenario)
