"""Where the answer of a chat begins: roles, echoes, truncated prompts, and batches."""

from typing import Any

import pytest

from tests.server.conftest import Play
from tests.server.support import MODEL, Site

PATH, BATCH = "/v1/chat/completions", "/v1/chat/completions/batch"
SAID = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "the quick"}
CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}
SHORT = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}


async def message(site: Site, *messages: Any, **fields: Any) -> dict[str, Any]:
    response = await site.post(PATH, messages=messages, **SHORT, **fields)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice["message"]


@pytest.mark.parametrize("parts", [False, True])
def test_an_echo_begins_with_the_message_that_is_continued(on: Play, parts: bool) -> None:
    async def scenario(site: Site) -> None:
        last: dict[str, Any] = dict(BEGUN)
        if parts:
            last["content"] = [{"type": "text", "text": BEGUN["content"]}]
        plain = await message(site, SAID, last, **CONTINUED)
        echoed = await message(site, SAID, last, **CONTINUED, echo=True)
        assert plain["content"]
        assert echoed == {**plain, "content": "the quick" + plain["content"]}
        streamed = await site.events(
            PATH, messages=[SAID, last], n=2, **CONTINUED, **SHORT, echo=True
        )
        deltas = [(one["index"], one["delta"]) for e in streamed for one in e["choices"]]
        role, echo = {"role": "assistant", "content": ""}, {"content": "the quick"}
        assert deltas[:4] == [(0, role), (1, role), (0, echo), (1, echo)]
        for index in range(2):
            text = "".join(delta.get("content") or "" for at, delta in deltas if at == index)
            assert text == echoed["content"]

    on(scenario)


def test_a_message_of_another_role_is_not_echoed(on: Play) -> None:
    async def scenario(site: Site) -> None:
        assert await message(site, SAID, echo=True) == await message(site, SAID)

    on(scenario)


def test_an_answer_that_begins_no_message_has_the_role_of_the_last(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for role in ("user", "my-own-role"):
            said = {"role": role, "content": "hello"}
            answer = await message(site, said, add_generation_prompt=False, echo=True)
            assert answer["role"] == role
            assert answer["content"].startswith("hello")

    on(scenario)


def test_roles_are_those_of_the_client(on: Play) -> None:
    async def scenario(site: Site) -> None:
        parts = [{"type": "text", "text": "hello"}]
        one, other = [
            await message(site, {"role": "my-own-role", "content": content})
            for content in ("hello", parts)
        ]
        assert one == other
        assert one["role"] == "assistant"
        assert one != await message(site, SAID)

    on(scenario)


def test_the_role_of_new_messages_is_a_setting(on: Play) -> None:
    async def scenario(site: Site) -> None:
        object.__setattr__(site.context.settings, "response_role", "bot")
        try:
            assert (await message(site, SAID))["role"] == "bot"
            (first, *_) = await site.events(PATH, messages=[SAID], **SHORT)
            assert first["choices"][0]["delta"]["role"] == "bot"
        finally:
            object.__setattr__(site.context.settings, "response_role", "assistant")

    on(scenario)


def test_a_long_prompt_may_be_truncated(on: Play) -> None:
    async def scenario(site: Site) -> None:
        ids = site.context.tokenizer.encode("one two three four five six")
        for side, kept in (("left", ids[-4:]), ("right", ids[:4])):
            asked = {"truncate_prompt_tokens": 4, "truncation_side": side, "echo": True}
            response = await site.post(
                "/v1/completions",
                prompt="one two three four five six",
                logprobs=1,
                return_token_ids=True,
                **asked,
                **SHORT,
            )
            (choice,) = response.json()["choices"]
            assert choice["prompt_token_ids"] == kept
            text = site.context.tokenizer.decode(kept, skip_special=False)
            assert choice["text"].startswith(text)
            assert choice["logprobs"]["text_offset"][0] == 0
        for path, body in ((PATH, {"messages": [SAID]}), ("/v1/responses", {"input": "hello"})):
            used = (await site.post(path, **body, **SHORT, truncate_prompt_tokens=3)).json()[
                "usage"
            ]
            assert used.get("prompt_tokens", used.get("input_tokens")) == 3
        too_long = {"prompt": "word " * 9000, "max_tokens": 5}
        fits = await site.post("/v1/completions", **too_long, truncate_prompt_tokens=-1)
        assert fits.json()["usage"]["prompt_tokens"] == site.engine.max_model_len - 5
        assert "maximum context length" in (await site.post("/v1/completions", **too_long)).text
        for field, value in (
            *(("truncate_prompt_tokens", most) for most in (0, -2, 10**6, "all")),
            ("truncation_side", "middle"),
        ):
            refused = await site.post(PATH, messages=[SAID], **{field: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)

    on(scenario)


# -- batches ----------------------------------------------------------------


def test_a_batch_has_a_choice_for_each_conversation(on: Play) -> None:
    async def scenario(site: Site) -> None:
        talks = [[SAID], [{"role": "user", "content": "the lazy dog"}], [SAID, BEGUN, SAID]]
        asked = {"return_token_ids": True, "logprobs": True, "top_logprobs": 1}
        response = await site.post(BATCH, model=MODEL, messages=talks, **SHORT, **asked)
        batch = response.json()
        assert batch["object"] == "chat.completion"
        alone = [(await site.post(PATH, messages=talk, **SHORT, **asked)).json() for talk in talks]
        for index, (found, single) in enumerate(zip(batch["choices"], alone, strict=True)):
            (expected,) = single["choices"]
            prompt = {"prompt_logprobs": None, "prompt_token_ids": single["prompt_token_ids"]}
            assert found == {**expected, **prompt, "index": index}
        used = [one["usage"]["total_tokens"] for one in alone]
        assert batch["usage"]["total_tokens"] == sum(used)
        scored = (await site.post(BATCH, messages=talks, **SHORT, prompt_logprobs=0)).json()
        lengths = [len(one["prompt_logprobs"]) for one in scored["choices"]]
        assert lengths == [len(one["prompt_token_ids"]) for one in batch["choices"]]

    on(scenario)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True, "beam_width": 2}, "use_beam_search"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages"),
        ({"messages": [SAID]}, "messages"),
        ({"messages": [[SAID]] * 1025}, "messages"),
        ({"messages": [[SAID], [{"role": 3}]]}, "messages"),
    ],
)
def test_a_batch_that_cannot_be_answered_is_refused(
    on: Play, fields: dict[str, Any], param: str
) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(BATCH, **{"messages": [[SAID]], **SHORT, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)

    on(scenario)
