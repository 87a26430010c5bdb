"""Keys, sizes, patience and foreign pages."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from paceline.core.errors import ConfigError
from paceline.server.middleware import RequestGuard
from paceline.server.settings import ServerSettings
from tests.server.conftest import Play
from tests.server.support import Site, on_its_own_server, slow

PATH = "/v1/completions"
BODY = {"prompt": "the", "max_tokens": 1}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_is_asked_for_except_on_probes() -> None:
    async def scenario(site: Site) -> None:
        for path in ("/health", "/ready", "/ping", "/metrics"):
            assert (await site.http.get(path)).status_code == 200
        for headers in ({}, bearer("wrong"), {"Authorization": "Basic first"}):
            response = await site.http.post(PATH, json=BODY, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        for path in ("/version", "/v1/models", "/openapi.json"):
            assert (await site.http.get(path)).status_code == 401
        assert (await site.http.post("/pause")).status_code == 401
        for key in ("first", "second"):
            response = await site.http.post(PATH, json=BODY, headers=bearer(key))
            assert response.status_code == 200

    on_its_own_server(scenario, ServerSettings(api_keys=("first", "second")))


@pytest.mark.parametrize("docs", [False, True])
def test_the_page_of_the_api_is_there_where_it_is_allowed(docs: bool) -> None:
    async def scenario(site: Site) -> None:
        expected = 200 if docs else 401
        for path in ("/docs", "/openapi.json"):
            assert (await site.http.get(path)).status_code == expected
        page = await site.http.get("/docs", headers=bearer("first"))
        described = await site.http.get("/openapi.json", headers=bearer("first"))
        assert page.status_code == (200 if docs else 404)
        assert ("securitySchemes" in described.text) == docs, "the page asks for a key"
        assert (await site.http.get("/v1/models")).status_code == 401

    on_its_own_server(scenario, ServerSettings(api_keys=("first",), docs=docs))


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models", "/nowhere", PATH])
def test_head_is_answered_as_get_without_a_body(on: Play, path: str) -> None:
    async def scenario(site: Site) -> None:
        head, get = await site.http.head(path), await site.http.get(path)
        assert head.status_code == get.status_code
        assert head.headers["content-length"] == get.headers["content-length"]
        assert head.content == b""

    on(scenario)


def test_bodies_and_heads_have_a_largest_size() -> None:
    async def parts() -> object:
        for _ in range(10):
            yield b"x" * 1000

    async def scenario(site: Site) -> None:
        announced = await site.http.post(PATH, content=b"x" * 5001)
        kind = {"Content-Type": "application/json"}
        unannounced = await site.http.post(PATH, content=parts(), headers=kind)  # type: ignore
        assert announced.status_code == unannounced.status_code == 413
        assert "5000 bytes" in unannounced.json()["error"]["message"]
        heavy = await site.http.get("/version", headers={"X-Filler": "x" * 3000})
        assert heavy.status_code == 431
        fits = await site.http.post(PATH, json={**BODY, "filler": "x" * 4000})
        assert fits.status_code == 200

    on_its_own_server(scenario, ServerSettings(body_bytes=5000, header_bytes=2000))


def test_a_size_is_allowed_up_to_its_limit() -> None:
    async def in_two(body: bytes) -> AsyncIterator[bytes]:
        yield body[:100]
        yield body[100:]

    async def scenario(site: Site) -> None:
        kind = {"Content-Type": "application/json"}
        for more, status in ((0, 200), (1, 413)):
            filler = "x" * (500 + more - len(json.dumps({**BODY, "filler": ""})))
            body = json.dumps({**BODY, "filler": filler}).encode()
            assert len(body) == 500 + more
            for content in (body, in_two(body)):
                response = await site.http.post(PATH, content=content, headers=kind)
                assert response.status_code == status

    on_its_own_server(scenario, ServerSettings(body_bytes=500))


@pytest.mark.parametrize("path", [PATH, "/health"])
@pytest.mark.parametrize(("size", "refused"), [(20, False), (21, True)])
def test_names_and_values_of_headers_count(size: int, refused: bool, path: str) -> None:
    seen: list[int] = []

    async def let_in(_scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(200)

    async def send(message: Any) -> None:
        seen.append(message.get("status", 0))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    headers = [(b"name", b"x"), (b"other", b"x" * (size - 10))]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(RequestGuard(let_in, ServerSettings(header_bytes=20))(scope, receive, send))
    assert seen[0] == (431 if refused else 200)


def test_the_word_before_a_key_is_written_in_any_way() -> None:
    async def scenario(site: Site) -> None:
        for given in ("bearer first", "BEARER first", "Bearer  first"):
            response = await site.http.get("/version", headers={"Authorization": given})
            assert response.status_code == 200

    on_its_own_server(scenario, ServerSettings(api_keys=("first",)))


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(site.url).port)
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()

    on_its_own_server(scenario, ServerSettings(body_s=0.05))


def test_a_body_that_is_announced_as_too_large_is_not_waited_for() -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(site.url).port)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 5001\r\n\r\n"
        writer.write(head.encode())
        assert b" 413 " in await reader.readline()
        writer.close()
        await writer.wait_closed()

    on_its_own_server(scenario, ServerSettings(body_bytes=5000))


def test_an_answer_may_take_longer_than_a_body() -> None:
    async def scenario(site: Site) -> None:
        asked = {"prompt": "the", "max_tokens": 20, "ignore_eos": True}
        response = await site.post(PATH, **asked)
        assert response.json()["usage"]["completion_tokens"] == 20

    on_its_own_server(scenario, ServerSettings(body_s=0.05), breaks=slow)


def test_pages_of_other_sites_are_shut_out_unless_they_are_named() -> None:
    page = {"Origin": "https://page.example"}

    async def closed(site: Site) -> None:
        response = await site.http.post(PATH, json=BODY, headers=page)
        assert "access-control-allow-origin" not in response.headers

    async def opened(site: Site) -> None:
        response = await site.http.post(PATH, json=BODY, headers=page)
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == page["Origin"]
        assert response.headers["access-control-expose-headers"] == "X-Request-Id, Retry-After"
        asked = {**page, "Access-Control-Request-Method": "POST"}
        asked["Access-Control-Request-Headers"] = "authorization, x-request-id"
        assert (await site.http.options(PATH, headers=asked)).status_code == 200

    on_its_own_server(closed)
    settings = ServerSettings(allowed_origins=(page["Origin"],), api_keys=("key",))
    on_its_own_server(opened, settings)


def test_what_is_not_json_is_refused_with_the_reason(on: Play) -> None:
    async def scenario(site: Site) -> None:
        json = {"Content-Type": "application/json"}
        for content, headers, reason in [
            (b'{"prompt": ', json, "not valid JSON"),
            (b"\xff\xfe", json, "JSON"),
            (b"[1]", json, "JSON object"),
            (b"", json, "JSON object"),
            (b'{"prompt": "the"}', {}, "application/json"),
            (b"prompt=the", {"Content-Type": "application/x-www-form-urlencoded"}, "JSON"),
        ]:
            response = await site.http.post(PATH, content=content, headers=headers)
            assert response.status_code == 400, content[:20]
            assert reason in response.json()["error"]["message"]

    on(scenario)


def test_a_proxy_may_show_the_server_under_a_path() -> None:
    async def scenario(site: Site) -> None:
        for root in ("", "/of/llm"):  # a proxy takes it off the path, or does not
            assert (await site.http.get(f"{root}/health")).status_code == 200
            assert (await site.http.get(f"{root}/v1/models")).status_code == 401
            asked = await site.http.post(root + PATH, json=BODY, headers=bearer("first"))
            assert asked.json()["object"] == "text_completion"
        for other in ("/of/llm2/health", "/of/health", "/of/llm"):
            assert (await site.http.get(other, headers=bearer("first"))).status_code == 404
        described = await site.http.get("/of/llm/openapi.json", headers=bearer("first"))
        assert described.json()["servers"] == [{"url": "/of/llm"}]
        await every_response_has_an_id(site)

    settings = ServerSettings(
        api_keys=("first",), root_path="/of/llm", enable_request_id_headers=True
    )
    on_its_own_server(scenario, settings)


async def every_response_has_an_id(site: Site) -> None:
    """The client's own, or a new one, with each response once."""
    mine = {"X-Request-Id": "mine"}
    for path in ("/health", "/v1/models", "/of/llm/nowhere"):
        own = await site.http.get(path, headers=mine)
        assert own.headers.get_list("x-request-id") == ["mine"]
        new = [(await site.http.get(path)).headers["x-request-id"] for _ in range(2)]
        assert len(set(new)) == 2
    answer = await site.http.post(PATH, json=BODY, headers={**mine, **bearer("first")})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_by_default_only_answers_have_an_id(on: Play) -> None:
    async def scenario(site: Site) -> None:
        assert "x-request-id" not in (await site.http.get("/health")).headers
        assert "x-request-id" in (await site.http.post(PATH, json=BODY)).headers

    on(scenario)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("body_bytes", 0),
        ("header_bytes", 0),
        ("body_s", 0.0),
        ("unread_s", 0.0),
        ("drain_s", -1.0),
        ("drain_s", float("nan")),
        ("timeout_s", -1.0),
        ("timeout_s", float("nan")),
        ("api_keys", ("",)),
        ("log_format", "xml"),
        ("otlp_endpoint", "localhost:4318"),
        ("root_path", "llm"),
        ("root_path", "/llm/"),
        ("tool_call_parser", "other"),
        ("reasoning_parser", "other"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    said = {"api_keys": "API key", "tool_call_parser": "tool parser 'other'"}
    with pytest.raises(ConfigError, match=said.get(name, name.replace("_parser", " parser"))):
        ServerSettings(**{name: value})
