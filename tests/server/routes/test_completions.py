"""Completions in all forms of a prompt."""

import json

import pytest
from openai import BadRequestError

from paceline.engine.api import SamplingParams
from tests.engine.support import expected, expected_text, tokenizer
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server

PATH = "/v1/completions"


def continued(prompt: str | list[int], **params: object) -> str:
    return expected_text(*expected(prompt, SamplingParams(**params)))  # type: ignore[arg-type]


def test_a_text_several_texts_and_token_ids(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai
        texts = ["the quick", "hello", "nothing"]
        ids = [tokenizer().encode(text) for text in texts]
        wanted = [continued(text, max_tokens=10, seed=2) for text in texts]
        for prompt, answers in [
            (texts[0], wanted[:1]),
            (texts, wanted),
            (ids[0], wanted[:1]),
            (ids, wanted),
        ]:
            got = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=10, seed=2)
            assert [choice.text for choice in got.choices] == answers
            assert [choice.index for choice in got.choices] == list(range(len(answers)))
            assert got.object == "text_completion"
            assert got.usage is not None
            assert got.usage.prompt_tokens == sum(map(len, ids[: len(answers)]))

    on(scenario)


def test_token_ids_that_were_not_asked_for_are_null(on: Play) -> None:
    """Clients read these fields of a whole choice without a look whether they are there."""

    async def scenario(site: Site) -> None:
        text = (await site.post("/v1/completions", prompt="the", max_tokens=2)).json()
        messages = [{"role": "user", "content": "the"}]
        asked = {"messages": messages, "max_tokens": 2}
        chat = (await site.post("/v1/chat/completions", **asked)).json()
        for place in (text["choices"][0], {**chat, **chat["choices"][0]}):
            assert place["token_ids"] is None
            assert place["prompt_token_ids"] is None
        for event in await site.events("/v1/chat/completions", **asked):
            assert "prompt_token_ids" not in event

    on(scenario)


def test_answers_name_the_system_that_computed_them() -> None:
    async def scenario(site: Site) -> None:
        asked = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 2}
        for path, body in (("/v1/chat/completions", asked), (PATH, {"prompt": "the"})):
            answers = [(await site.post(path, **body)).json(), *await site.events(path, **body)]
            assert {one["system_fingerprint"] for one in answers} == {"fp_test"}
        for path, body in (("/v1/responses", {"input": "the"}), ("/v1/messages", asked)):
            answer = (await site.post(path, **body)).json()
            assert answer["system_fingerprint"] == "fp_test"
            events = (await site.post(path, stream=True, **body)).text.split("\n\n")
            first = json.loads(events[0].partition("data: ")[2])
            begun = first["response" if path == "/v1/responses" else "message"]
            assert begun["system_fingerprint"] == "fp_test"

    on_its_own_server(scenario, system_fingerprint="fp_test")


def test_streams_of_several_prompts_and_choices_are_told_apart(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked = {"prompt": ["the quick", "hello"], "max_tokens": 12, "n": 2, "seed": 4}
        whole = (await site.post(PATH, **asked)).json()
        events = await site.events(PATH, **asked, stream_options={"include_usage": True})
        texts = [""] * 4
        ends = 0
        for event in events[:-1]:
            (choice,) = event["choices"]
            texts[choice["index"]] += choice["text"]
            ends += choice["finish_reason"] is not None
        assert texts == [choice["text"] for choice in whole["choices"]]
        assert ends == 4
        counted = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [events[-1]["usage"][name] for name in counted] == [
            whole["usage"][name] for name in counted
        ]

    on(scenario)


def test_sixteen_tokens_by_default(on: Play) -> None:
    async def scenario(site: Site) -> None:
        got = (await site.post(PATH, prompt="the", ignore_eos=True)).json()
        assert got["usage"]["completion_tokens"] == 16
        assert got["choices"][0]["finish_reason"] == "length"

    on(scenario)


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_begins_with_the_prompt(on: Play, as_ids: bool) -> None:
    async def scenario(site: Site) -> None:
        prompt = tokenizer().encode("hello world") if as_ids else "hello world"
        asked = {"prompt": prompt, "max_tokens": 5, "seed": 1, "echo": True}
        wanted = "hello world" + continued("hello world", max_tokens=5, seed=1)
        assert (await site.post(PATH, **asked)).json()["choices"][0]["text"] == wanted
        events = await site.events(PATH, **asked)
        assert "".join(event["choices"][0]["text"] for event in events) == wanted

    on(scenario)


def test_an_echo_may_be_all_there_is(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked = {"prompt": "hello world", "max_tokens": 0, "echo": True}
        whole = (await site.post(PATH, **asked)).json()
        (choice,) = whole["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("hello world", "length")
        assert choice["logprobs"] is None
        assert whole["usage"]["completion_tokens"] == 0
        events = await site.events(PATH, **asked)
        assert [event["choices"][0]["text"] for event in events] == ["hello world"]

    on(scenario)


def test_logprobs_are_columns_with_offsets_into_the_text(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked = {"prompt": "the", "max_tokens": 8, "seed": 1, "logprobs": 2, "ignore_eos": True}
        whole = (await site.post(PATH, **asked)).json()["choices"][0]["logprobs"]
        assert {len(column) for column in whole.values()} == {8}
        lengths = [1 if name.startswith("bytes:") else len(name) for name in whole["tokens"]]
        starts = [sum(lengths[:at]) for at in range(8)]
        assert whole["text_offset"] == starts
        own = zip(whole["tokens"], whole["token_logprobs"], whole["top_logprobs"], strict=True)
        for token, logprob, top in own:
            assert 2 <= len(top) <= 3  # a token outside the top two comes beside them
            assert top[token] == logprob
            assert next(iter(top)) == token  # then the top two, best first
            others = [top[name] for name in top if name != token]
            assert others == sorted(others, reverse=True)
        joined: dict[str, list[object]] = {name: [] for name in whole}
        for event in await site.events(PATH, **asked):
            for name, column in (event["choices"][0]["logprobs"] or {}).items():
                joined[name] += column
        assert joined == whole

    on(scenario)


def test_no_alternatives_leave_the_token_itself(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked = {"prompt": "the", "max_tokens": 4, "logprobs": 0, "ignore_eos": True}
        (choice,) = (await site.post(PATH, **asked)).json()["choices"]
        told = choice["logprobs"]
        own = zip(told["tokens"], told["token_logprobs"], strict=True)
        assert told["top_logprobs"] == [{token: logprob} for token, logprob in own]
        assert choice["prompt_logprobs"] is None

    on(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_returned_on_request(on: Play, stream: bool) -> None:
    async def scenario(site: Site) -> None:
        asked = {
            "prompt": ["the", "hello"],
            "max_tokens": 6,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "logprobs": 1,
        }
        events = await site.events(PATH, **asked) if stream else []
        events = events or [(await site.post(PATH, **asked)).json()]
        for place, text in enumerate(asked["prompt"]):
            choices = [one for event in events for one in event["choices"] if one["index"] == place]
            ids = [id for one in choices for id in one["token_ids"]]
            assert len(ids) == 6
            assert tokenizer().decode(ids) == "".join(one["text"] for one in choices)
            prompts = [one["prompt_token_ids"] for one in choices if "prompt_token_ids" in one]
            assert prompts == [tokenizer().encode(text)]
            told = [one["logprobs"] for one in choices if one["logprobs"]]
            names = [token for one in told for token in one["tokens"]]
            assert names == [f"token_id:{id}" for id in ids]
            assert all(top.keys() & set(names) for one in told for top in one["top_logprobs"])

    on(scenario)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[2**40]]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "\ud800"}, None),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 99}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"deadline": -1.0}, "deadline"),
        ({"priority": 2**60}, "priority"),
        ({"prompt": "the " * 4000}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(on: Play, extra: dict[str, object], param: str | None) -> None:
    async def scenario(site: Site) -> None:
        body = json.dumps({"prompt": "the", **extra})
        headers = {"Content-Type": "application/json"}
        response = await site.http.post(PATH, content=body, headers=headers)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert error["message"]

    on(scenario)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([-1], "token ids cannot be negative"),
        ([[1], [2, -3]], "token ids cannot be negative"),
        ([2**31], "token ids are at most 2147483647"),
        ([1, "a"], "it must be a text, a list of token ids, or a list of several of either"),
        (None, "it must be a text, a list of token ids, or a list of several of either"),
    ],
)
def test_a_prompt_is_refused_for_one_reason(on: Play, prompt: object, reason: str) -> None:
    async def scenario(site: Site) -> None:
        error = (await site.post(PATH, prompt=prompt)).json()["error"]
        assert (error["message"], error["param"]) == (f"prompt: {reason}", "prompt")

    on(scenario)


def test_an_id_that_has_the_name_of_a_field_is_not_at_fault(on: Play) -> None:
    async def scenario(site: Site) -> None:
        body = {"prompt": "the", "deadline": -1.0}
        for name in ("seed", "chat", "it's-a-prompt"):
            response = await site.http.post(PATH, json=body, headers={"X-Request-Id": name})
            assert response.json()["error"]["param"] == "deadline"

    on(scenario)


@pytest.mark.parametrize("most", [-1, 0, 2**40])
def test_it_is_told_how_many_tokens_may_be_asked_for(on: Play, most: int) -> None:
    async def scenario(site: Site) -> None:
        error = (await site.post(PATH, prompt="the", max_tokens=most)).json()["error"]
        bounds = "it must lie in 1..2147483647, or 0 with echo"
        assert error["message"] == f"max_tokens: it is {most}; {bounds}"
        chat = {"messages": [{"role": "user", "content": "the"}], "max_tokens": most}
        error = (await site.post("/v1/chat/completions", **chat)).json()["error"]
        assert error["message"] == f"max_tokens: it is {most}; it must lie in 1..2147483647"

    on(scenario)


def test_one_bad_prompt_refuses_all_of_them(on: Play) -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(BadRequestError, match="vocabulary"):
            await site.openai.completions.create(
                model=MODEL, prompt=[[5, 6], [10**6]], max_tokens=200
            )
        await site.until(lambda: site.empty)

    on(scenario)
