"""Log-probabilities of tokens that the client names, beside those of the text."""

from typing import Any

import httpx
import pytest

from paceline.engine.sampling_rules import NO_RULES, SamplingRules
from paceline.server.settings import ServerSettings
from tests.server.conftest import Play
from tests.server.support import Site, on_its_own_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NAMED = [300, 5, 7]
UNLIKELY = [90, 5, 61]  # for the model with 101 tokens
SHORT = {"max_tokens": 4, "temperature": 0, "return_tokens_as_token_ids": True}
TALK = [{"role": "user", "content": "hello"}]


def named(id: int) -> str:
    return f"token_id:{id}"


async def scores(site: Site, path: str, **fields: Any) -> list[dict[str, float]]:
    """The alternatives at each position, by name, and a check of the token itself."""
    body = {"prompt": "the"} if path == COMPLETIONS else {"messages": TALK}
    response = await site.post(path, **body, **SHORT, ignore_eos=True, **fields)
    assert response.status_code == 200, response.text
    found = response.json()["choices"][0]["logprobs"]
    if path == COMPLETIONS:
        for token, top in zip(found["tokens"], found["top_logprobs"], strict=True):
            assert token in top
        return found["top_logprobs"]
    if "logprob_token_ids" in fields:
        firsts = [one["top_logprobs"][0]["token"] for one in found["content"]]
        assert firsts == [one["token"] for one in found["content"]]
    return [
        {top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in found["content"]
    ]


@pytest.mark.parametrize(
    ("path", "some", "every"),
    [
        (COMPLETIONS, {"logprobs": 0}, {"logprobs": 20}),
        (CHAT, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20}),
    ],
)
def test_named_tokens_are_scored_beside_the_token_itself(
    on: Play, path: str, some: dict[str, Any], every: dict[str, Any]
) -> None:
    async def scenario(site: Site) -> None:
        found = await scores(site, path, **some, logprob_token_ids=NAMED)
        likeliest = await scores(site, path, **every)
        assert len(found) == 4
        for top, best in zip(found, likeliest, strict=True):
            assert {named(id) for id in NAMED} <= set(top)
            assert len(top) <= len(NAMED) + 1
            for name in set(top) & set(best):
                assert top[name] == pytest.approx(best[name], abs=1e-5)

    on(scenario)


def test_a_real_model_scores_named_tokens(real: httpx.Client) -> None:
    """In one batch with requests that want the likeliest tokens, or none."""
    likeliest = real.post(COMPLETIONS, json={"prompt": "the", **SHORT, "logprobs": 20}).json()
    expected = likeliest["choices"][0]["logprobs"]["top_logprobs"]
    ids = [int(name.removeprefix("token_id:")) for name in list(expected[0])[3:6]]
    asked = {"prompt": ["the", "the quick"], **SHORT, "logprobs": 1, "logprob_token_ids": ids}
    one, other = real.post(COMPLETIONS, json=asked).json()["choices"]
    assert one["text"] == likeliest["choices"][0]["text"]
    for choice in (one, other):
        for top in choice["logprobs"]["top_logprobs"]:
            assert {named(id) for id in ids} <= set(top)
    first = one["logprobs"]["top_logprobs"][0]
    assert first == pytest.approx({name: expected[0][name] for name in first}, abs=1e-4)


def test_named_tokens_have_the_logprobs_that_a_prompt_with_them_has(real: httpx.Client) -> None:
    """At every position, also of tokens that are not likely."""
    asked = {"prompt": [5, 6, 7], **SHORT, "logprobs": 1, "return_token_ids": True}
    answer = real.post(COMPLETIONS, json={**asked, "logprob_token_ids": UNLIKELY}).json()
    (choice,) = answer["choices"]
    found = choice["logprobs"]["top_logprobs"]
    places = [(at, id) for at in range(4) for id in UNLIKELY]
    prompts = [[5, 6, 7, *choice["token_ids"][:at], id] for at, id in places]
    scored = {"prompt": prompts, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    columns = [
        one["prompt_logprobs"] for one in real.post(COMPLETIONS, json=scored).json()["choices"]
    ]
    for (at, id), column in zip(places, columns, strict=True):
        assert found[at][named(id)] == pytest.approx(column[-1][str(id)]["logprob"], abs=1e-4)


def test_tokens_are_written_as_ids_where_the_server_says_so() -> None:
    async def scenario(site: Site) -> None:
        chat: dict[str, Any] = {"messages": TALK, "max_tokens": 1, "logprobs": True}
        text: dict[str, Any] = {"prompt": "the", "max_tokens": 1, "logprobs": 0}
        for wanted, is_id in ((None, True), (True, True), (False, False)):
            asked = {"ignore_eos": True, "return_tokens_as_token_ids": wanted}
            one = (await site.post(CHAT, **chat, **asked)).json()["choices"][0]
            assert one["logprobs"]["content"][0]["token"].startswith("token_id:") is is_id
            other = (await site.post(COMPLETIONS, **text, **asked)).json()["choices"][0]
            assert other["logprobs"]["tokens"][0].startswith("token_id:") is is_id

    on_its_own_server(scenario, ServerSettings(return_tokens_as_token_ids=True))


def test_all_tokens_are_alternatives_if_the_server_allows_it(on: Play) -> None:
    async def scenario(site: Site) -> None:
        vocabulary, front_end = site.context.tokenizer.vocab_size, site.engine._frontend
        for path, fields in (
            (COMPLETIONS, {"logprobs": -1}),
            (CHAT, {"logprobs": True, "top_logprobs": -1}),
        ):
            front_end.rules = SamplingRules(max_logprobs=-1)
            found = await scores(site, path, **fields)
            front_end.rules = NO_RULES
            assert [len(top) for top in found] == [vocabulary] * 4
        refused = await site.post(CHAT, messages=TALK, logprobs=True, top_logprobs=-1)
        assert "top_logprobs is -1; it must lie in 0..20" in refused.text
        refused = await site.post(CHAT, messages=TALK, prompt_logprobs=-1)
        assert "prompt_logprobs is -1; it must lie in 0..20" in refused.text

    on(scenario)
