"""Each field of vLLM's request schemas works here, or is refused by name; none is ignored.

`vllm_fields.json` has the fields of a release; `tests.server.vllm_fields` renews it. A field that
none of the tables below has fails a test.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from paceline.server.settings import ServerSettings
from paceline.text.chat_template import ChatTemplate
from tests.server.conftest import Play
from tests.server.support import Site, on_its_own_server
from tests.server.vllm_fields import FILE

VLLM: dict[str, Any] = json.loads(FILE.read_text())
ROUTES: dict[str, list[str]] = VLLM["routes"]
SAID = [{"role": "user", "content": "the"}]
NEVER: Any = [[[]]]  # no field has this type

# The least body of each route.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 1},
    "/v1/chat/completions/batch": {"messages": [SAID], "max_tokens": 1},
    "/v1/completions": {"prompt": "the", "max_tokens": 1},
    "/v1/responses": {"input": "the", "max_output_tokens": 1},
    "/v1/messages": {"messages": SAID, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/tokenize": {"prompt": "the"},
    "/detokenize": {"tokens": [5]},
}

# Values that are refused with 400 and the name of the field, wherever the field is refused.
SHARED: dict[str, Any] = {
    "documents": [{"text": "a"}],
    "chat_template": "{{ messages }}",
    "thinking_token_budget": 5,
    "media_io_kwargs": {"image": {}},
    "mm_processor_kwargs": {"max_pixels": 9},
    "mm_payload": "none",
    "return_mm_kwargs": True,
    "ec_transfer_params": {"a": 1},
    "kv_transfer_params": {"do_remote_decode": True},
    "repetition_detection": {"max_pattern_size": 3, "min_count": 3},
    "return_token_offsets": True,
    "return_weight_versions": True,
    "routed_experts_prompt_start": 1,
    "stream_interval": 2,
    "vllm_xargs": {"a": 1},
    "watermarking": True,
    "guided_decoding_backend": "xgrammar",
    "prompt_embeds": "AAAA",
    "suffix": "dog",
    "max_tool_calls": 3,
    "enable_response_messages": True,
    "previous_input_messages": [{"role": "user"}],
    "prompt": {"id": "a"},
    "reasoning": {"summary": "auto"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "reasoning_effort": "low",
    "thinking": {"type": "enabled"},
}
MEDIA = ("media_io_kwargs", "mm_processor_kwargs")
RENDERED = ("mm_payload", "return_mm_kwargs", "ec_transfer_params", "watermarking")
GENERATED = (*RENDERED, "vllm_xargs", "stream_interval", "repetition_detection")
GENERATED += ("return_token_offsets", "return_weight_versions", "routed_experts_prompt_start")
REFUSED: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": (*GENERATED, *MEDIA),
    "/v1/chat/completions/batch": (*MEDIA, "watermarking", "guided_decoding_backend"),
    "/v1/completions": (*GENERATED, "prompt_embeds", "thinking_token_budget"),
    "/v1/responses": (
        *(*MEDIA, *RENDERED, "vllm_xargs", "kv_transfer_params", "max_tool_calls"),
        *("enable_response_messages", "previous_input_messages", "prompt"),
    ),
    "/v1/messages": (*RENDERED, "vllm_xargs"),
    "/v1/messages/count_tokens": (),
    "/tokenize": MEDIA,
    "/detokenize": (),
}
# Fields that work with a setting, or a model, that the server of this test has not.
ELSEWHERE = ("kv_transfer_params", "thinking_token_budget", "chat_template", "suffix", "thinking")
ELSEWHERE += ("documents", "bad_words", "reasoning_effort", "tool_choice", "tools")

# Values that are taken. A field that is missing here is taken as the body has it.
TAKEN: dict[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": True,
    "allowed_token_ids": [5, 6],
    "background": False,
    "best_of": 1,
    "cache_salt": "own",
    "chat_template_kwargs": {"a": 1},
    "continue_final_message": False,
    "early_stopping": False,
    "echo": False,
    "frequency_penalty": 0.5,
    "ignore_eos": True,
    "include": ["message.output_text.logprobs"],
    "include_reasoning": True,
    "include_stop_str_in_output": True,
    "instructions": "Be brief.",
    "length_penalty": 1.0,
    "logit_bias": {"5": 1.0},
    "max_completion_tokens": 1,
    "max_output_tokens": 1,
    "max_tokens": 1,
    "metadata": {"user_id": "ann"},
    "min_p": 0.1,
    "min_tokens": 1,
    "model": "oracle",
    "n": 1,
    "output_config": {"effort": None},
    "parallel_tool_calls": True,
    "presence_penalty": 0.5,
    "previous_response_id": None,
    "priority": 3,
    "prompt_cache_key": "a",
    "prompt_cache_options": {"mode": "auto"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": None},
    "repetition_penalty": 1.1,
    "request_id": "mine",
    "response_format": {"type": "text"},
    "return_prompt_text": True,
    "return_token_ids": True,
    "return_token_strs": True,
    "return_tokens_as_token_ids": True,
    "safety_identifier": "a",
    "seed": 7,
    "service_tier": "auto",
    "session_id": "a",
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "stop": ["x"],
    "stop_sequences": ["x"],
    "stop_token_ids": [9],
    "store": True,
    "stream": False,
    "stream_options": None,
    "structured_outputs": None,
    "system": "Be brief.",
    "temperature": 0.5,
    "text": {"format": {"type": "text"}},
    "thinking": {"type": "disabled"},
    "tool_choice": "none",
    "tools": [],
    "top_k": 5,
    "top_p": 0.5,
    "truncate_prompt_tokens": -1,
    "truncation": "disabled",
    "truncation_side": "left",
    "use_beam_search": False,
    "user": "ann",
}
OWN_TAKEN: dict[tuple[str, str], Any] = {
    ("/v1/messages", "tool_choice"): {"type": "none"},
    ("/v1/messages/count_tokens", "tool_choice"): {"type": "none"},
}
NEEDS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "logprob_token_ids": {"logprobs": True},
}
SCORED = ("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids")  # not by this model
# vLLM's schema of /tokenize is one of two: a text or a conversation.
OF_EITHER = ("messages", "prompt", "input", "tokens")


def every(table: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(route, name) for route, names in table.items() for name in names]


def known(route: str, name: str) -> bool:
    own = (*TAKEN, *ELSEWHERE, *SCORED, *OF_EITHER)
    return name in REFUSED[route] or name in own


@pytest.mark.parametrize(("route", "name"), every(ROUTES))
def test_each_field_is_consumed(on: Play, route: str, name: str) -> None:
    """A field of a type that it never has is refused by name, so the schema reads it."""
    assert known(route, name), f"{name} of {route} is new in vLLM {VLLM['vllm']}: classify it"

    async def scenario(site: Site) -> None:
        response = await site.post(route, **{**BODIES[route], name: NEVER})
        assert response.status_code == 400, (name, response.text)
        assert name in response.json()["error"]["message"]

    on(scenario)


@pytest.mark.parametrize(("route", "name"), every(REFUSED))
def test_what_is_refused_is_named(on: Play, route: str, name: str) -> None:
    assert name in ROUTES[route], f"vLLM {VLLM['vllm']} has no {name} any more"

    async def scenario(site: Site) -> None:
        response = await site.post(route, **{**BODIES[route], name: SHARED[name]})
        error = response.json()["error"]
        assert response.status_code == 400, (name, response.text)
        assert error.get("param", name) == name
        assert f"remove {name}" in error["message"]
        nothing = await site.post(route, **{**BODIES[route], name: None})
        assert nothing.status_code == 200, (name, nothing.text)

    on(scenario)


@pytest.mark.parametrize("route", BODIES)
def test_what_works_is_taken(on: Play, route: str) -> None:
    async def scenario(site: Site) -> None:
        for name in ROUTES[route]:
            if name in TAKEN and name not in REFUSED[route]:
                value = OWN_TAKEN.get((route, name), TAKEN[name])
                response = await site.post(route, **{**BODIES[route], name: value})
                assert response.status_code == 200, (name, response.text)

    on(scenario)


# -- what fields do that no other test has --------------------------------------

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@pytest.mark.parametrize("route", [CHAT, TEXT, RESPONSES])
def test_a_request_has_the_id_of_its_body(on: Play, route: str) -> None:
    async def scenario(site: Site) -> None:
        name = f"own{route.replace('/', '-')}"
        response = await site.post(route, **BODIES[route], request_id=name)
        assert response.json()["id"] == response.headers["x-request-id"] == name
        headers = {"X-Request-Id": f"{name}-header"}
        body = {**BODIES[route], "request_id": f"{name}-body"}
        response = await site.http.post(route, json=body, headers=headers)
        assert response.json()["id"] == f"{name}-header"
        response = await site.post(route, **BODIES[route], request_id="a\nb")
        assert response.json()["error"]["param"] == "request_id"

    on(scenario)


def test_a_chat_returns_the_text_of_its_prompt(on: Play) -> None:
    async def scenario(site: Site) -> None:
        got = (await site.post(CHAT, **BODIES[CHAT], return_prompt_text=True)).json()
        assert got["prompt_text"] == site.context.template.render(SAID)
        assert "prompt_text" not in (await site.post(CHAT, **BODIES[CHAT])).json()
        streamed = await site.post(CHAT, **BODIES[CHAT], return_prompt_text=True, stream=True)
        assert streamed.json()["error"]["param"] == "return_prompt_text"

    on(scenario)


def test_special_tokens_are_returned_without_spaces(on: Play) -> None:
    async def scenario(site: Site) -> None:
        shown = {"skip_special_tokens": False, "spaces_between_special_tokens": True}
        response = await site.post(CHAT, **BODIES[CHAT], **shown)
        assert response.json()["error"]["param"] == "spaces_between_special_tokens"
        shown["spaces_between_special_tokens"] = False
        assert (await site.post(CHAT, **BODIES[CHAT], **shown)).status_code == 200

    on(scenario)


def test_variables_and_documents_reach_the_chat_template() -> None:
    async def scenario(site: Site) -> None:
        source = "{{ mood }}{% for one in documents %}{{ one.text }}{% endfor %}{{ messages }}"
        site.context.template = site.engine._frontend.template = ChatTemplate(source)
        mood = {"chat_template_kwargs": {"mood": "cheerful and more than cheerful"}}
        papers = {"documents": [{"text": "a long paper"}, {"text": "a longer paper"}]}

        async def tokens(route: str, **extra: Any) -> int:
            used = (await site.post(route, **{**BODIES[route], **extra})).json()
            used = used.get("usage", used)
            found = [used.get(key, 0) for key in ("prompt_tokens", "input_tokens", "count")]
            cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
            return sum(found) + sum(used.get(key, 0) for key in cached)

        for route in (CHAT, RESPONSES, "/v1/messages", "/v1/messages/count_tokens"):
            assert await tokens(route, **mood) > await tokens(route), route
        assert await tokens(CHAT, **papers) > await tokens(CHAT)
        talk = {"messages": SAID, "prompt": None}
        assert await tokens("/tokenize", **talk, **papers) == await tokens(CHAT, **papers)

    on_its_own_server(scenario)


def test_a_chat_template_of_a_client_needs_trust() -> None:
    own = {"chat_template": "{{ messages[0].content }}{{ messages[0].content }}!"}

    async def scenario(site: Site) -> None:
        asked = {**BODIES[CHAT], **own, "return_prompt_text": True}
        assert (await site.post(CHAT, **asked)).json()["prompt_text"] == "thethe!"
        counted = (await site.post("/tokenize", messages=SAID, **own)).json()["tokens"]
        assert counted == site.context.tokenizer.encode("thethe!", special=False)
        broken = await site.post(CHAT, **{**asked, "chat_template": "{% if"})
        assert broken.status_code == 400

    on_its_own_server(scenario, ServerSettings(trust_request_chat_template=True))


def test_a_chat_template_of_a_client_is_refused_without_trust(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for route in (CHAT, "/tokenize"):
            body = {"messages": SAID, "chat_template": "a"}
            error = (await site.post(route, **body)).json()["error"]
            assert error["param"] == "chat_template"
            assert "--trust-request-chat-template" in error["message"]

    on(scenario)


def test_the_input_of_a_response_is_counted(on: Play) -> None:
    async def scenario(site: Site) -> None:
        asked = {"input": "the quick", "instructions": "Be brief."}
        counted = (await site.post(f"{RESPONSES}/input_tokens", **asked)).json()
        response = (await site.post(RESPONSES, **asked, max_output_tokens=2)).json()
        tokens = response["usage"]["input_tokens"]
        assert counted == {"object": "response.input_tokens", "input_tokens": tokens}
        after = {"previous_response_id": response["id"]}
        more = (await site.post(f"{RESPONSES}/input_tokens", **after)).json()
        assert more["input_tokens"] > tokens
        empty = await site.post(f"{RESPONSES}/input_tokens")
        assert empty.status_code == 400

    on(scenario)
