"""An error says what is wrong, in one shape, and what to do."""

import json

import pytest

from tests.server.conftest import Play
from tests.server.support import Site

PATH = "/v1/completions"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"prompt": ', "not valid JSON: Expecting value at character 11"),
        (b'{"prompt": "\xff"}', "it is not UTF-8: byte 12 is 0xff"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a number has more than 4300 digits"),
    ],
)
def test_a_body_that_cannot_be_parsed_is_refused_with_the_reason(
    on: Play, content: bytes, reason: str
) -> None:
    async def scenario(site: Site) -> None:
        headers = {"Content-Type": "application/json"}
        response = await site.http.post(PATH, content=content, headers=headers)
        assert response.status_code == 400
        error = response.json()["error"]
        assert reason in error["message"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "json_invalid")

    on(scenario)


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/v1/chat/completion", "there is no route /v1/chat/completion; did you mean "),
        ("POST", "/chat/completions", "did you mean /v1/chat/completions?"),
        ("GET", "/healthz", "did you mean /health?"),
        ("GET", "/nothing/like/this", "GET /openapi.json lists the routes"),
        ("GET", PATH, f"{PATH} does not take GET; use POST"),
    ],
)
def test_an_unknown_route_names_the_nearest(on: Play, method: str, path: str, hint: str) -> None:
    async def scenario(site: Site) -> None:
        response = await site.http.request(method, path)
        error = response.json()["error"]
        assert hint in error["message"]
        expected = (405, "method_not_allowed") if path == PATH else (404, "unknown_route")
        assert (response.status_code, error["code"]) == expected

    on(scenario)


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        ("1", "data_parallel_rank is 1; it must lie in 0..0"),
        ("first", "the header X-data-parallel-rank is 'first'; it must be the number of an engine"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(on: Play, rank: str, reason: str) -> None:
    async def scenario(site: Site) -> None:
        body = {"prompt": "hello", "max_tokens": 1}
        for sent, status in ((rank, 400), ("0", 200)):
            headers = {"X-data-parallel-rank": sent}
            response = await site.http.post(PATH, json=body, headers=headers)
            assert response.status_code == status
            if status == 400:
                error = response.json()["error"]
                assert reason in error["message"]
                assert error["param"] == "data_parallel_rank"

    on(scenario)


def test_no_response_repeats_the_host_that_a_client_names(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for path in ("/health/", "/v1/completions/"):
            response = await site.http.get(path, headers={"Host": "evil.example"})
            assert response.status_code == 404
            assert "location" not in response.headers

    on(scenario)


def test_the_code_of_an_error_is_always_a_name(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for body, code in [
            ({}, "invalid_request"),
            ({"prompt": "the", "temperature": -1}, "invalid_request"),
            ({"prompt": "the", "model": "other"}, "model_not_found"),
        ]:
            error = (await site.post(PATH, **body)).json()["error"]
            assert error["code"] == code

    on(scenario)


def test_the_documented_shape_is_the_one_that_is_sent(on: Play) -> None:
    async def scenario(site: Site) -> None:
        paths = json.loads((await site.http.get("/openapi.json")).text)["paths"]
        schema = paths[PATH]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
        shape = schema["properties"]["error"]["properties"]
        assert shape["code"] == {"type": "string"}
        assert shape.keys() == (await site.post(PATH)).json()["error"].keys()

    on(scenario)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_error_has_the_id_that_the_log_has(
    on: Play, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(site: Site) -> None:
        messages = [{"role": "user", "content": [{"type": "audio"}]}]
        response = await site.http.post(path, json={"messages": messages, "max_tokens": 1})
        name = response.headers["X-Request-Id"]
        assert f"{name} {path}: refused" in caplog.text
        assert response.json().get("request_id", name) == name

    with caplog.at_level("INFO", "paceline.requests"):
        on(scenario)
