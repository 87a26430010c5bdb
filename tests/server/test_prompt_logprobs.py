"""Log-probabilities of prompts over HTTP: echoed as OpenAI does, and in vLLM's own field."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from openai import OpenAI

from tests.server.conftest import Play
from tests.server.support import Site

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "the quick brown fox"
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval().requires_grad_(False)


def tokens(real: httpx.Client, text: str) -> list[int]:
    found: list[int] = real.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return found


def expected(theirs: Any, ids: list[int]) -> list[float]:
    """Of each token but the first."""
    rows = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(row[id]) for row, id in zip(rows, ids[1:], strict=False)]


@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_has_the_logprobs_of_the_prompt(
    real: httpx.Client, theirs: Any, as_ids: bool
) -> None:
    ids = tokens(real, TEXT)
    values = expected(theirs, ids)
    with OpenAI(base_url=str(real.base_url.join("/v1")), api_key="none", max_retries=0) as client:
        got = client.completions.create(
            model=client.models.list().data[0].id,
            prompt=[ids, ids] if as_ids else [TEXT, TEXT],
            max_tokens=4,
            echo=True,
            logprobs=2,
            n=2,
            seed=1,
            extra_body={"ignore_eos": True},
        )
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
    for choice in got.choices:
        assert choice.text.startswith(TEXT)
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.token_logprobs is not None
        assert told.top_logprobs is not None
        assert "".join(told.tokens[: len(ids)]) == TEXT
        assert told.token_logprobs[0] is None
        assert told.top_logprobs[0] is None
        assert told.token_logprobs[1 : len(ids)] == pytest.approx(values, abs=1e-4)
        assert len(told.token_logprobs) == len(ids) + 4
        assert all(2 <= len(top) <= 3 for top in told.top_logprobs[1:])
        starts = [sum(map(len, told.tokens[:at])) for at in range(len(ids) + 4)]
        assert told.text_offset == starts


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_without_a_token_generated(
    real: httpx.Client, theirs: Any, as_ids: bool, stream: bool
) -> None:
    texts = [TEXT, "the lazy dog"]
    ids = [tokens(real, text) for text in texts]
    asked: dict[str, Any] = {
        "prompt": ids if as_ids else texts,
        "max_tokens": 0,
        "echo": True,
        "logprobs": 2,
        "n": 2,
        # The likeliest token of all would be a stop, were it asked for.
        "extra_body": {"logit_bias": {"1": 100}, "stop_token_ids": [1]},
    }
    with OpenAI(base_url=str(real.base_url.join("/v1")), api_key="none", max_retries=0) as client:
        asked["model"] = client.models.list().data[0].id
        if stream:
            usage = {"include_usage": True}
            *got, last = client.completions.create(**asked, stream=True, stream_options=usage)
            choices = sorted((one.choices[0] for one in got), key=lambda one: one.index)
        else:
            last = client.completions.create(**asked)
            choices = last.choices
    assert last.usage.completion_tokens == 0
    assert last.usage.prompt_tokens == last.usage.total_tokens == sum(map(len, ids))
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    for choice in choices:
        text, prompt = texts[choice.index // 2], ids[choice.index // 2]
        assert (choice.text, choice.finish_reason) == (text, "length")
        told = choice.logprobs
        assert "".join(told.tokens) == text
        assert len(told.top_logprobs) == len(told.text_offset) == len(prompt)
        assert told.token_logprobs[0] is None
        assert told.token_logprobs[1:] == pytest.approx(expected(theirs, prompt), abs=1e-4)


def test_vllms_field_has_ranks(real: httpx.Client, theirs: Any) -> None:
    ids = tokens(real, TEXT)
    values = expected(theirs, ids)
    body = {"prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 3}
    (choice,) = real.post(COMPLETIONS, json=body).json()["choices"]
    assert choice["logprobs"] is None
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for id, value, entries in zip(ids[1:], values, others, strict=True):
        own = entries[str(id)]
        assert own["logprob"] == pytest.approx(value, abs=1e-4)
        assert next(iter(entries)) == str(id)
        ranks = sorted(one["rank"] for one in entries.values())
        assert ranks == sorted({1, 2, 3, own["rank"]})
        assert own["decoded_token"] in TEXT


def test_a_stream_echoes_the_same(real: httpx.Client) -> None:
    asked: dict[str, Any] = {
        "prompt": [TEXT, "the cat sat on the mat and the dog"],
        "max_tokens": 6,
        "n": 2,
        "seed": 1,
        "logprobs": 2,
        "echo": True,
        "ignore_eos": True,
    }
    whole = real.post(COMPLETIONS, json=asked).json()["choices"]
    columns: list[dict[str, list[Any]]] = [{} for _ in whole]
    texts = [""] * len(whole)
    for event in real.post(COMPLETIONS, json={**asked, "stream": True}).text.split("\n\n")[:-2]:
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
        for name, column in (choice["logprobs"] or {}).items():
            columns[choice["index"]].setdefault(name, []).extend(column)
    assert texts == [choice["text"] for choice in whole]
    for ours, choice in zip(columns, whole, strict=True):
        told = choice["logprobs"]
        assert (ours["tokens"], ours["text_offset"]) == (told["tokens"], told["text_offset"])
        assert ours["token_logprobs"][0] is ours["top_logprobs"][0] is None
        assert ours["token_logprobs"][1:] == pytest.approx(told["token_logprobs"][1:], abs=1e-5)
        assert [list(top) for top in ours["top_logprobs"][1:]] == [
            list(top) for top in told["top_logprobs"][1:]
        ]


def test_a_chat_tells_them_once(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 3, "n": 2}
        plain = (await site.post(CHAT, **asked)).json()
        assert plain["prompt_logprobs"] is None
        told = (await site.post(CHAT, **asked, prompt_logprobs=0)).json()
        first, *others = told["prompt_logprobs"]
        assert first is None
        assert len(others) + 1 == told["usage"]["prompt_tokens"]
        assert all(len(entries) == 1 for entries in others)

    on(scenario)


def test_each_number_is_kept_where_both_are_given(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked: dict[str, Any] = {"prompt": "the quick fox", "max_tokens": 1, "echo": True}
        for logprobs, prompt_logprobs in ((1, 4), (4, 1)):
            more = {"logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
            (choice,) = (await site.post(COMPLETIONS, **asked, **more)).json()["choices"]
            tops = choice["logprobs"]["top_logprobs"][1:]
            assert all(logprobs <= len(top) <= logprobs + 1 for top in tops)
            ranks = [{one["rank"] for one in top.values()} for top in choice["prompt_logprobs"][1:]]
            wanted = set(range(1, prompt_logprobs + 1))
            assert all(wanted <= found and len(found) <= len(wanted) + 1 for found in ranks)

    on(scenario)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "extra",
    [
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": "2"},
        {"prompt_logprobs": True},
        {"prompt_logprobs": 1, "stream": True},
    ],
)
def test_what_is_wrong_is_named(on: Play, path: str, extra: dict[str, Any]) -> None:
    async def scenario(site: Site) -> None:
        body = {"messages": MESSAGES} if path == CHAT else {"prompt": "the"}
        response = await site.post(path, **body, **extra)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert error["param"] == "prompt_logprobs"

    on(scenario)


def test_too_many_with_an_echo(on: Play) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(COMPLETIONS, prompt="the", echo=True, logprobs=21)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "logprobs"

    on(scenario)
