"""What hosting platforms and the people who run them ask."""

from pathlib import Path

import httpx
import pytest

from paceline import __version__
from paceline.engine.trace.trace_file import TraceWindows
from paceline.server.settings import ServerSettings
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server

TALK = [{"role": "user", "content": "hello"}]


def test_ping_says_that_the_engine_works(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for method in ("GET", "POST", "HEAD"):
            response = await site.http.request(method, "/ping")
            assert (response.status_code, response.content) == (200, b"")

    on(scenario)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"messages": TALK}, "chat.completion"),
        ({"prompt": "the"}, "text_completion"),
        ({"input": "hello"}, "response"),
    ],
)
def test_an_invocation_is_answered_by_the_route_of_its_fields(
    on: Play, fields: dict[str, object], kind: str
) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post("/invocations", max_tokens=4, **fields)
        assert response.json()["object"] == kind
        streamed = await site.post("/invocations", max_tokens=4, stream=True, **fields)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        refused = await site.post("/invocations", n="two", **fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")

    on(scenario)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"max_tokens": 3}', "the body has none of messages, prompt and input; add one"),
        (b"{", "not valid JSON"),
        (b"[1]", "the body must be a JSON object"),
        (b'{"messages": 3}', "messages: "),
    ],
)
def test_an_invocation_that_no_route_can_answer_says_why(
    on: Play, body: bytes, problem: str
) -> None:
    async def scenario(site: Site) -> None:
        headers = {"content-type": "application/json"}
        response = await site.http.post("/invocations", content=body, headers=headers)
        assert response.status_code == 400
        assert problem in response.json()["error"]["message"]

    on(scenario)


def test_a_client_that_hangs_up_ends_its_invocation(on: Play) -> None:
    async def scenario(site: Site) -> None:
        body = {"prompt": "the", "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with site.http.stream("POST", "/invocations", json=body) as response:
            await anext(response.aiter_lines())
        await site.until(lambda: site.empty)

    on(scenario)


def test_the_settings_are_shown_without_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: Site) -> None:
        site.context.given_settings = {"max_num_seqs": 4}
        bearer = {"Authorization": "Bearer hidden"}
        assert (await site.http.get("/server_info")).status_code == 401
        found: httpx.Response = await site.http.get("/server_info", headers=bearer)
        shown = found.json()
        assert "hidden" not in found.text
        assert f"'model': '{MODEL}'" in shown["vllm_config"]
        assert shown["system_env"]["paceline"] == __version__
        assert shown["vllm_env"]["PACELINE_CACHE"] == "/tmp/x"
        as_json = await site.http.get("/server_info?config_format=json", headers=bearer)
        config = as_json.json()["vllm_config"]
        assert (config["max_num_seqs"], config["api_keys"], config["drain_s"]) == (4, 1, 30.0)

    monkeypatch.setenv("PACELINE_CACHE", "/tmp/x")
    monkeypatch.setenv("PACELINE_API_KEY", "hidden")
    on_its_own_server(scenario, ServerSettings(api_keys=("hidden",)))


def test_the_root_says_what_there_is(on: Play) -> None:
    async def scenario(site: Site) -> None:
        found = await site.http.get("/")
        assert found.status_code == 200
        assert MODEL in found.text
        assert "POST /v1/chat/completions" in found.text

    on(scenario)

    async def with_page(site: Site) -> None:
        found = await site.http.get("/")
        assert (found.status_code, found.headers["location"]) == (307, "/llm/dashboard")

    on_its_own_server(with_page, ServerSettings(dashboard=True, root_path="/llm"))


def test_readyz_needs_no_key() -> None:
    async def scenario(site: Site) -> None:
        assert (await site.http.get("/readyz")).json() == {"status": "ok"}
        assert (await site.http.get("/")).status_code == 401
        site.context.draining = True
        assert (await site.http.get("/readyz")).status_code == 503
        site.context.draining = False

    on_its_own_server(scenario, ServerSettings(api_keys=("secret",)))


def test_a_profile_is_started_and_stopped(on: Play, tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        refused = await site.http.post("/start_profile")
        assert (refused.status_code, "--trace FILE" in refused.text) == (400, True)
        path = tmp_path / "trace.json"
        site.context.given_settings = {"trace": str(path)}
        assert (await site.http.post("/stop_profile")).json() == {"trace": str(path)}
        assert (await site.http.post("/stop_profile")).status_code == 400
        assert (await site.http.post("/start_profile")).status_code == 200
        first, second = TraceWindows(path).spans() or ()
        assert first[1] <= second[0]
        site.context.given_settings = {}
        assert (await site.http.post("/reset_mm_cache")).json() == {"reset": True}

    on(scenario)
