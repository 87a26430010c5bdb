"""Overload and time limits: every request gets an answer with the reason."""

import asyncio
import logging
from typing import Any

import pytest
from openai import APIStatusError, RateLimitError

from paceline.server.settings import ServerSettings
from tests.engine.support import MAX_MODEL_LEN
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server, slow

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "the", "max_tokens": 200, "ignore_eos": True}


def test_a_queue_that_is_full_of_tokens_says_when_to_come_again() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        asking = asyncio.create_task(site.post(PATH, **{**LONG, "prompt": [7] * 30}))
        await site.until(lambda: len(site.context.open_requests) == 1)
        with pytest.raises(RateLimitError) as refused:
            await site.openai.completions.create(model=MODEL, prompt=[7] * 30)
        assert refused.value.code == "queue_full"
        assert "max_queued_tokens" in refused.value.message
        assert int(refused.value.response.headers["retry-after"]) >= 1
        await site.engine.resume()
        assert (await asking).status_code == 200
        assert (await site.post(PATH, **{**LONG, "prompt": [7] * 30})).status_code == 200

    on_its_own_server(scenario, max_queued_tokens=50)


@pytest.mark.parametrize("words", [MAX_MODEL_LEN, 4000])
@pytest.mark.parametrize(
    ("path", "param"),
    [(PATH, "prompt"), ("/v1/chat/completions", "messages"), ("/v1/responses", "input")],
)
def test_a_prompt_that_is_too_long_is_known_by_its_code(
    on: Play, path: str, param: str, words: int
) -> None:
    async def scenario(site: Site) -> None:
        text = "the " * words
        given: Any = [{"role": "user", "content": text}] if param == "messages" else text
        error = (await site.post(path, **{param: given})).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert (
            f"leaves no room for one more within max_model_len {MAX_MODEL_LEN}" in error["message"]
        )
        assert f"this model's maximum context length is {MAX_MODEL_LEN} tokens" in error["message"]

    on(scenario)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["the", ["the", "quick"]])
def test_a_request_that_is_not_begun_in_time_is_a_504(stream: bool, prompt: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        response = await site.post(PATH, **{**LONG, "prompt": prompt}, stream=stream)
        assert response.status_code == 504
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("timeout_error", "timeout")
        assert error["message"] == "it was not started within queue_timeout_s (0.05 s)"

    on_its_own_server(scenario, queue_timeout_s=0.05)


@pytest.mark.parametrize("order", [["the", "quick"], ["quick", "the"]])
def test_a_part_that_is_not_begun_does_not_take_the_others_with_it(order: list[str]) -> None:
    async def scenario(site: Site) -> None:
        body = {**LONG, "prompt": order, "max_tokens": 60, "seed": 1}
        whole = (await site.post(PATH, **body)).json()["choices"]
        assert [choice["finish_reason"] for choice in whole] == ["length", "timeout"]
        events = [event["choices"][0] for event in await site.events(PATH, **body)]
        ends = {one["index"]: one["finish_reason"] for one in events if one["finish_reason"]}
        assert ends == {0: "length", 1: "timeout"}
        text = "".join(one["text"] for one in events if one["index"] == 0)
        assert text == whole[0]["text"]

    on_its_own_server(scenario, breaks=slow, max_num_seqs=1, queue_timeout_s=0.25)


def test_a_request_with_a_timeout_of_its_own_is_a_504_or_ends_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "paceline.requests")

    async def scenario(site: Site) -> None:
        body = {**LONG, "max_tokens": 240, "timeout": 1.0}
        asking = asyncio.gather(site.post(PATH, **body), site.events(PATH, **body))
        await site.until(lambda: len(site.context.open_requests) == 2)
        await site.until_told()
        await site.engine.pause("all")
        whole, events = await asking
        (choice,) = whole.json()["choices"]
        assert choice["finish_reason"] == events[-1]["choices"][0]["finish_reason"] == "timeout"
        assert 0 < whole.json()["usage"]["completion_tokens"] < 240
        with pytest.raises(APIStatusError) as late:
            await site.openai.completions.create(
                model=MODEL, prompt="the", extra_body={"timeout": 0.05}
            )
        assert (late.value.status_code, late.value.code) == (504, "timeout")
        for wrong in (0, -1.0):
            refused = await site.post(PATH, **{**LONG, "timeout": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "timeout")

    on_its_own_server(scenario, breaks=slow)
    said = [record.getMessage() for record in caplog.records]
    assert sum(": timeout (the request did not end within 1 s)" in one for one in said) == 2
    assert sum(": timeout (the request did not end within 0.05 s)" in one for one in said) == 1


def test_the_server_may_set_a_timeout_for_those_who_name_none() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        assert (await site.post(PATH, **LONG)).status_code == 504
        await site.engine.resume()
        assert (await site.post(PATH, **LONG, timeout=20)).status_code == 200

    on_its_own_server(scenario, ServerSettings(timeout_s=0.1))
