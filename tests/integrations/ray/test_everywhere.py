"""Requests on their way to one replica or to all."""

import asyncio
import json
from typing import Any

import pytest

from paceline.integrations.ray.everywhere import (
    FIRST_BLOCKS,
    ForwardedRequest,
    ReceivedRequest,
    WholeResponse,
    combination_for,
    prompt_keys,
)


def response(replica: str, status: int = 200, body: bytes = b"") -> WholeResponse:
    return WholeResponse(replica, status, [(b"content-length", b"%d" % len(body))], body)


@pytest.mark.parametrize(
    ("path", "status"), [("/pause", 503), ("/requests/an/id/explain", 200), ("/v1/models", None)]
)
def test_one_response_is_chosen(path: str, status: int | None) -> None:
    combined = combination_for(path)
    found = combined and combined([response("a", 200), response("b", 503)]).status
    assert found == status


def test_metrics_have_the_replica_as_a_label() -> None:
    text = b'# HELP n Requests.\n# TYPE n gauge\nn{engine="0"} 1.0\n'
    combined = combination_for("/metrics")
    assert combined
    whole = combined([response("a", body=text), response("b", body=text)])
    assert whole.body.decode().splitlines()[2:] == [
        'n{engine="0",replica="a"} 1.0',
        'n{engine="0",replica="b"} 1.0',
    ]
    assert whole.headers == [(b"content-length", b"%d" % len(whole.body))]


def keys(**body: Any) -> list[bytes]:
    return prompt_keys(json.dumps(body).encode())


def common(one: list[bytes], other: list[bytes]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


def test_prompts_that_begin_alike_have_common_keys() -> None:
    first, second = keys(prompt="a" * 300 + "b" * 300), keys(prompt="a" * 300 + "c" * 300)
    assert (len(first), common(first, second)) == (9, 4)
    assert keys(temperature=0.5, prompt="a" * 300) == keys(prompt="a" * 300, stream=True)


def test_a_conversation_goes_on_where_it_was() -> None:
    turn = [{"role": "user", "content": "x" * 200}]
    longer = [*turn, {"role": "assistant", "content": "y" * 200}]
    before, after = keys(messages=turn), keys(messages=longer)
    assert common(before, after) == len(before) == 3
    assert common(keys(messages=turn, tools=["z" * 80]), before) == 0
    assert keys(input="w" * 100, instructions="v" * 100)[0] == keys(instructions="v" * 100)[0]


def test_models_and_salts_share_nothing() -> None:
    plain = keys(prompt="a" * 100)
    assert not common(plain, keys(prompt="a" * 100, model="adapter"))
    assert not common(plain, keys(prompt="a" * 100, cache_salt="salt"))


def test_only_the_first_blocks_have_keys_and_other_bodies_have_none() -> None:
    assert len(keys(prompt="a" * 100_000)) == FIRST_BLOCKS
    assert (
        keys(prompt="short") == prompt_keys(b"{") == prompt_keys(b"[1]") == prompt_keys(b"") == []
    )
    assert prompt_keys(b'{"prompt": "\xff"}') == []


def test_a_replica_receives_the_body_once_and_then_the_end() -> None:
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "app": object()}
    sent = ForwardedRequest.of(scope, b"body")
    assert "app" not in sent.scope

    async def main() -> list[dict[str, Any]]:
        received = ReceivedRequest(sent.body)
        first = await received.receive()
        received.hung_up.set()
        return [dict(first), dict(await received.receive())]

    body, end = asyncio.run(main())
    assert (body["body"], body["more_body"], end["type"]) == (b"body", False, "http.disconnect")
