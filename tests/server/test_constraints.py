"""What a client says about the text it wants is kept or refused, and never dropped."""

import re
from typing import Any

import httpx
import pytest

from tests.engine.support import framing_texts
from tests.server.conftest import Play
from tests.server.support import Site, on_its_own_server

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the"}]},
    "/v1/responses": {"input": "the"},
}
EVERYWHERE = pytest.mark.parametrize("path", list(BODIES))


def text_of(answer: dict[str, Any]) -> str:
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    (choice,) = answer["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@EVERYWHERE
def test_only_tokens_that_are_allowed_come(real: httpx.Client, path: str) -> None:
    def answer(**extra: Any) -> str:
        body = {**BODIES[path], "max_tokens": 4, "temperature": 0.0, "ignore_eos": True, **extra}
        return text_of(real.post(path, json=body).json())

    word = real.post("/detokenize", json={"tokens": [5]}).json()["prompt"]
    assert answer() != word * 4 == answer(allowed_token_ids=[5])
    assert answer(allowed_token_ids=[5, 6], bad_token_ids=[5]) != word * 4
    assert answer(allowed_token_ids=None) == answer()


@EVERYWHERE
@pytest.mark.parametrize("ids", [[], [-1], [10**6], ["a"], 5])
def test_tokens_that_cannot_be_allowed_are_refused(on: Play, path: str, ids: object) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(path, **BODIES[path], allowed_token_ids=ids)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "allowed_token_ids"

    on(scenario)


@EVERYWHERE
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", "json"),
        ("chat_template", "{{ messages }}"),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("regex", "a+"),
        ("json_schema", "{}"),
        ("ebnf", "root ::= 'a'"),
        ("grammar", "root ::= 'a'"),
        ("modalities", ["text", "audio"]),
        ("modalities", "audio"),
        ("logits_processors", ["f"]),
        ("documents", [{"text": "a"}]),
        ("prompt_embeds", "AAAA"),
        ("custom_logit_processor", "AAAA"),
        ("stop_regex", "a+"),
        ("web_search_options", {}),
        ("vllm_xargs", {"a": 1}),
        ("return_hidden_states", True),
        ("thinking_token_budget", 0),
        ("detokenize", False),
        ("verbosity", "low"),
        ("adapter", "mine"),
        ("lora", "mine"),
        ("lora_path", "mine"),
        ("lora_request", {"lora_name": "mine"}),
        ("images", ["AAAA"]),
        ("image_data", "AAAA"),
        ("video_data", "AAAA"),
        ("audio", {"voice": "alto", "format": "wav"}),
        ("audio_data", "AAAA"),
        ("multi_modal_data", {"image": "AAAA"}),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    on: Play, path: str, field: str, value: object
) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(path, **BODIES[path], max_tokens=1, **{field: value})
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert error["param"] == field
        assert error["message"].startswith((f"{field}: ", f"{field} has no effect"))
        if field not in ("response_format", "modalities"):  # these may be of a wrong type
            assert re.search(rf"; (remove {field}|use none or auto)$", error["message"])
        assert error["type"] == "invalid_request_error"

    on(scenario)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
def test_a_message_is_continued_in_a_chat_alone(on: Play, path: str) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(path, **BODIES[path], continue_final_message=True)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "continue_final_message"

    on(scenario)


@EVERYWHERE
def test_what_asks_for_nothing_is_taken(on: Play, path: str) -> None:
    async def scenario(site: Site) -> None:
        for extra in [
            {"guided_json": None, "structured_outputs": None, "truncate_prompt_tokens": None},
            {"response_format": {"type": "text"}, "continue_final_message": False},
            {"bad_words": [], "colour": "red"},
            {"functions": [], "function_call": "auto", "chat_template": None, "regex": None},
            {"modalities": ["text"], "json_schema": None, "ebnf": None},
            {"detokenize": True, "include_reasoning": True, "verbosity": "medium"},
            {"logprob_token_ids": None, "kv_transfer_params": None, "return_hidden_states": False},
            {"images": [], "lora": None, "lora_request": None, "audio": None, "adapter": None},
        ]:
            response = await site.post(path, **BODIES[path], max_tokens=1, **extra)
            assert response.status_code == 200, response.text

    on(scenario)


@EVERYWHERE
def test_special_tokens_are_added_to_a_text_and_not_to_a_conversation(path: str) -> None:
    async def scenario(site: Site) -> None:
        async def tokens(**extra: Any) -> int:
            usage = (await site.post(path, **BODIES[path], **extra)).json()["usage"]
            return usage.get("prompt_tokens") or usage["input_tokens"]

        added, plain = await tokens(add_special_tokens=True), await tokens(add_special_tokens=False)
        assert added == plain + 1
        assert await tokens() == (added if path == "/v1/completions" else plain)

    with framing_texts():
        on_its_own_server(scenario)


def test_a_refused_field_says_why_and_what_to_do(on: Play) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post("/v1/completions", prompt="the", regex="a+")
        assert response.json()["error"] == {
            "message": "regex: constraints are in structured_outputs; remove regex",
            "type": "invalid_request_error",
            "param": "regex",
            "code": "invalid_request",
        }

    on(scenario)


@pytest.mark.parametrize(
    ("path", "extra", "param"),
    [
        ("/v1/chat/completions", {"tools": [{"type": "function"}]}, "tools"),
        ("/v1/chat/completions", {"tools": [{}], "tool_choice": "auto"}, "tools"),
        ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("/v1/responses", {"echo": True}, "echo"),
        ("/v1/chat/completions", {"reasoning_effort": "huge"}, "reasoning_effort"),
        ("/v1/completions", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("/v1/completions", {"include_reasoning": False}, "include_reasoning"),
        ("/v1/responses", {"reasoning": {"effort": "huge"}}, "reasoning"),
        ("/v1/responses", {"reasoning": {"summary": "detailed"}}, "reasoning"),
        ("/v1/responses", {"text": {"verbosity": "low"}}, "text"),
        ("/v1/responses", {"truncation": "auto"}, "truncation"),
        ("/v1/responses", {"prompt": {"id": "mine"}}, "prompt"),
        ("/v1/responses", {"return_token_ids": True}, "return_token_ids"),
        ("/v1/responses", {"logprob_token_ids": [5]}, "logprob_token_ids"),
        ("/v1/completions", {"logprob_token_ids": [5]}, "logprob_token_ids"),
        ("/v1/completions", {"logprob_token_ids": [], "logprobs": 1}, "logprob_token_ids"),
        ("/v1/completions", {"logprob_token_ids": [9999], "logprobs": 1}, "logprob_token_ids"),
        ("/v1/chat/completions", {"logprob_token_ids": [5]}, "logprob_token_ids"),
    ],
)
def test_what_one_route_cannot_do_is_refused_there(
    on: Play, path: str, extra: dict[str, Any], param: str
) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(path, **BODIES[path], max_tokens=1, **extra)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)

    on(scenario)


@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "none"}),
        ("/v1/chat/completions", {"reasoning_effort": "low"}),
        ("/v1/responses", {"reasoning": {"effort": "low"}}),
        ("/v1/messages", {"output_config": {"effort": "low"}}),
    ],
)
def test_an_effort_that_the_template_does_not_use_is_taken(
    on: Play, path: str, extra: dict[str, Any]
) -> None:
    async def scenario(site: Site) -> None:
        body = {**BODIES["/v1/responses" if path == "/v1/responses" else "/v1/chat/completions"]}
        answer = await site.post(path, **body, max_tokens=1, **extra)
        assert answer.status_code == 200, answer.text

    on(scenario)


def test_tools_that_are_not_to_be_called_are_taken(on: Play) -> None:
    async def scenario(site: Site) -> None:
        path, tools = "/v1/chat/completions", [{"type": "function", "function": {"name": "f"}}]
        plain = (await site.post(path, **BODIES[path], max_tokens=1)).json()
        body = {**BODIES[path], "max_tokens": 1, "tools": tools, "tool_choice": "none"}
        assert (await site.post(path, **body)).json()["usage"] == plain["usage"]

    on(scenario)


TRUTH = {"type": "boolean"}  # the vocabulary of the model has letters alone
STRICT = {"name": "truth", "schema": TRUTH, "strict": True}


@EVERYWHERE
@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"structured_outputs": {"json": TRUTH}}, "true|false"),
        ({"guided_choice": ["a", "bc"]}, "a|bc"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"response_format": {"type": "json_schema", "json_schema": STRICT}}, "true|false"),
    ],
)
def test_an_output_follows_its_constraint(
    real: httpx.Client, path: str, constraint: dict[str, Any], pattern: str
) -> None:
    response = real.post(path, json={**BODIES[path], "max_tokens": 40, **constraint})
    assert response.status_code == 200, response.text
    assert re.fullmatch(pattern, text_of(response.json()).strip())


def test_a_response_and_a_message_have_formats_of_their_own(real: httpx.Client) -> None:
    form = {"type": "json_schema", "name": "truth", "schema": TRUTH}
    body = {"input": "the", "max_tokens": 40, "text": {"format": form}}
    answer = real.post("/v1/responses", json=body).json()
    assert text_of(answer).strip() in ("true", "false")
    assert answer["text"] == {"format": form}
    streamed = real.post("/v1/responses", json={**body, "stream": True}).text
    deltas = re.findall(r'output_text.delta.*"delta":"(.*?)"', streamed)
    assert "".join(deltas).strip() in ("true", "false")
    for field in ({"output_config": {"format": form}}, {"output_format": form}):
        talk = [{"role": "user", "content": "the"}]
        body = {"messages": talk, "max_tokens": 40, **field}
        message = real.post("/v1/messages", json=body).json()
        assert message["content"][0]["text"].strip() in ("true", "false")


@EVERYWHERE
@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_json"),
        ({"guided_regex": "("}, None),  # this is found when it is compiled
    ],
)
def test_a_constraint_that_cannot_be_followed_is_refused(
    real: httpx.Client, path: str, constraint: dict[str, Any], param: str | None
) -> None:
    response = real.post(path, json={**BODIES[path], "max_tokens": 4, **constraint})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@EVERYWHERE
def test_a_server_without_a_role_transfers_no_kv(on: Play, path: str) -> None:
    async def scenario(site: Site) -> None:
        asked = {**BODIES[path], "kv_transfer_params": {"do_remote_decode": True}}
        response = await site.post(path, **asked)
        assert response.status_code == 400
        assert "kv_transfer_params" in response.json()["error"]["message"]

    on(scenario)


def test_a_number_of_a_transfer_has_64_bits(on: Play) -> None:
    async def scenario(site: Site) -> None:
        given = {"do_remote_decode": True, "colour": 2**64}
        response = await site.post("/v1/completions", prompt="a", kv_transfer_params=given)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "kv_transfer_params"
        assert "does not fit into 64 bits" in response.json()["error"]["message"]

    on(scenario)


def test_a_transfer_has_one_prompt(on: Play) -> None:
    async def scenario(site: Site) -> None:
        given = {"do_remote_decode": True}
        response = await site.post("/v1/completions", prompt=["a", "b"], kv_transfer_params=given)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "kv_transfer_params"
        assert "there are 2 prompts" in response.json()["error"]["message"]

    on(scenario)
