"""Requests that are heavy: none of them keeps the event loop from other requests."""

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from paceline.server.body import SHORT_BODY, check_values
from paceline.server.errors import ApiError
from paceline.server.settings import ServerSettings
from tests.server.conftest import Play
from tests.server.support import PATIENCE_S, Site, on_its_own_server

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
LONGEST_TURN_S = 0.15  # the work itself takes several times as long; some machines slow down by 2.5
SAID = {"role": "user", "content": "x"}
LONG_TEXT = "the quick brown fox, 123 jumps\n" * 8000


class LoopTurns:
    """The longest turn of an event loop, in CPU time of its thread: noise of others is none."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = time.thread_time()
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest_s, self._last = max(self.longest_s, now - self._last), now
        self._next = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._next.cancel()


@contextmanager
def watched() -> Iterator[LoopTurns]:
    turns = LoopTurns()
    try:
        yield turns
    finally:
        turns.stop()


@pytest.fixture(scope="module", autouse=True)
def without_garbage() -> Iterator[None]:
    """What other tests have left is no work of the server."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def sent(site: Site, path: str, body: bytes) -> httpx.Response:
    """Send it from another thread, which leaves the loop to the server."""
    headers = {"Content-Type": "application/json"}
    url = site.url + path
    return await asyncio.to_thread(
        httpx.post, url, content=body, headers=headers, timeout=PATIENCE_S
    )


ECHOED = {"echo": True, "max_tokens": 1, "logprobs": 20}
HEAVY: list[tuple[str, str, dict[str, Any], int]] = [
    ("many prompts", PATH, {"prompt": [[5]] * 20_000, "max_tokens": 1}, 400),
    ("very many prompts", PATH, {"prompt": [[5]] * 900_000}, 413),
    ("allowed prompts", PATH, {"prompt": [[5]] * 300, "max_tokens": 1}, 200),
    ("streamed prompts", PATH, {"prompt": ["a"] * 300, "max_tokens": 3, "stream": True}, 200),
    ("many sequences", PATH, {"prompt": ["a"] * 1000, "n": 8}, 400),
    ("one wide request", PATH, {"prompt": "a", "n": 4096}, 400),
    ("wrong prompts", PATH, {"prompt": [[5]] * 20_000 + [["a"]]}, 400),
    ("a long prompt", PATH, {"prompt": [5] * 200_000}, 400),
    ("a long text", PATH, {"prompt": LONG_TEXT}, 400),
    ("an echoed prompt", PATH, {"prompt": [[5] * 200] * 100, "echo": True, "max_tokens": 0}, 200),
    ("scored prompts", PATH, {**ECHOED, "prompt": [[5] * 200] * 2}, 200),
    ("scored and streamed", PATH, {**ECHOED, "prompt": [5] * 200, "stream": True}, 200),
    ("a text to tokenize", "/tokenize", {"prompt": LONG_TEXT, "return_token_strs": True}, 200),
    ("tokens", "/detokenize", {"tokens": [5] * 200_000}, 200),
    ("biases", PATH, {"prompt": "a", "logit_bias": {str(i): 1.0 for i in range(60_000)}}, 400),
    ("stop tokens", PATH, {"prompt": "a", "stop_token_ids": [5] * 200_000}, 400),
    ("allowed tokens", PATH, {"prompt": "a", "allowed_token_ids": [5] * 60_000}, 200),
    ("stop strings", PATH, {"prompt": "a", "stop": ["b"] * 100_000}, 400),
    ("messages", CHAT, {"messages": [SAID] * 40_000}, 400),
    ("allowed messages", CHAT, {"messages": [SAID] * 8000}, 400),
    ("input", "/v1/responses", {"input": [SAID] * 8000}, 400),
    ("tools", CHAT, {"messages": [SAID], "tools": [{"a": 1}] * 5000}, 400),
    ("wrong messages", CHAT, {"messages": [5] * 200_000}, 400),
    ("ids to abort", "/abort_requests", {"request_ids": ["x"] * 100_000}, 400),
    ("unknown values", PATH, {"prompt": "a", "max_tokens": 1, "x": [{}] * 100_000}, 200),
]


@pytest.mark.parametrize(
    ("path", "body", "status"), [one[1:] for one in HEAVY], ids=[one[0] for one in HEAVY]
)
def test_no_request_holds_the_loop(on: Play, path: str, body: dict[str, Any], status: int) -> None:
    async def scenario(site: Site) -> None:
        content = json.dumps(body).encode()
        with watched() as turns:
            response = await sent(site, path, content)
        assert response.status_code == status, response.text[:500]
        assert turns.longest_s < LONGEST_TURN_S

    on(scenario)


def test_a_long_body_is_read_like_a_short_one(on: Play) -> None:
    filler = {"filler": "x" * SHORT_BODY}
    ids = {"prompt": [5, 6], "max_tokens": 2, "seed": 1}
    wrong: list[tuple[str, dict[str, Any]]] = [
        (PATH, {"prompt": "a", "n": "two"}),
        (PATH, {"prompt": "a", "max_tokens": -1}),
        (PATH, {"prompt": ["a", 5]}),
        (PATH, {"prompt": [5, -6]}),
        (PATH, {"prompt": [[2**31]]}),
        (CHAT, {"messages": [SAID, "x"]}),
        (CHAT, {}),
        ("/detokenize", {"tokens": [2**20]}),
    ]

    async def scenario(site: Site) -> None:
        short, long = [await site.post(PATH, **ids, **more) for more in ({}, filler)]
        assert short.json()["choices"] == long.json()["choices"]
        for path, body in wrong:
            short, long = [await site.post(path, **body, **more) for more in ({}, filler)]
            assert short.status_code == long.status_code == 400
            assert short.json() == long.json()
        for form in (b'{"prompt": "%s', b'{"prompt": "\xff%s"}', b"%s", b'[{}, "%s"]'):
            for size in (1, SHORT_BODY):
                refused = await sent(site, PATH, form % (b"x" * size))
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, None)

    on(scenario)


def test_a_body_is_read_alike_under_every_name_of_json(on: Play) -> None:
    kinds = ("application/json", "application/json; charset=utf-8", "application/vnd.mine+json")
    bodies: list[tuple[dict[str, Any] | str, int]] = [
        ({"prompt": [5, 6], "max_tokens": 2, "seed": 1}, 200),
        ({"prompt": "a", "n": "two"}, 400),
        ("[" * 100_000, 400),
        ("", 400),
    ]

    async def scenario(site: Site) -> None:
        for body, status in bodies:
            content = body if isinstance(body, str) else json.dumps(body)
            answers = [
                await site.http.post(PATH, content=content, headers={"Content-Type": kind})
                for kind in kinds
            ]
            assert {one.status_code for one in answers} == {status}
            told = [one.json().get("choices") or one.json()["error"] for one in answers]
            assert told == [told[0]] * len(kinds)

    on(scenario)


def test_every_route_with_a_body_reads_it_that_way(on: Play) -> None:
    async def scenario(site: Site) -> None:
        found = (await site.http.get("/openapi.json")).json()["paths"]
        with_body = {path for path, ways in found.items() if "requestBody" in ways.get("post", {})}
        long = json.dumps({"x": [0] * 2**18}).encode()
        for path in with_body:
            assert (await sent(site, path, long)).status_code == 413, path
        assert len(with_body) >= 6

    on(scenario)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"[]", 1),
        (b"[1, 2, 3]", 3),
        (b'{"a": [1, 2], "b": {"c": null}}', 8),
        (rb'{"a,[{:": "\\\"[,,,,"}', 2),
        (rb'["\\\\", "[[[[[["]', 2),
        ('["[[["]'.encode("utf-16"), 4),
    ],
)
def test_values_are_counted_outside_of_texts(body: bytes, values: int) -> None:
    json.loads(body)
    check_values(body, values)
    with pytest.raises(ApiError, match=f"more than {values - 1} values"):
        check_values(body, values - 1)


def test_the_limits_of_a_body_can_be_set() -> None:
    async def scenario(site: Site) -> None:
        few, many = [await site.post(PATH, prompt=["a"] * n, max_tokens=1) for n in (3, 4)]
        assert (few.status_code, many.status_code) == (200, 400)
        assert "4 prompts; at most 3 (max_prompts)" in many.json()["error"]["message"]
        for count, status in ((1000, 200), (1001, 413)):
            body = {"prompt": "a", "max_tokens": 1, "x": ["y" * 20] * count}
            assert (await site.post(PATH, **body)).status_code == status

    on_its_own_server(scenario, ServerSettings(max_prompts=3, body_values=1006))
