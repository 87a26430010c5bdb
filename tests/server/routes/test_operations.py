"""What operators, routers and scrapers ask."""

import asyncio
import json
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline import __version__
from paceline.engine.api import PromptTooLong
from paceline.server.client_headers import ClientHeaders
from paceline.server.errors import api_error_of
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server, paced

PATH = "/v1/completions"
LONG = {"prompt": "the", "max_tokens": 200, "ignore_eos": True}
# Those that the stock dashboard, autoscalers and routers look for.
DASHBOARD = [
    "e2e_request_latency_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "time_to_first_token_seconds_bucket",
    "generation_tokens_total",
    "prompt_tokens_total",
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "request_success_total",
    "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_max_num_generation_tokens_sum",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "gpu_cache_usage_perc",
    "gpu_prefix_cache_hits_total",
    "gpu_prefix_cache_queries_total",
    "num_requests_waiting_by_reason",
    "cache_config_info",
]


def test_probes_version_and_models(on: Play) -> None:
    async def scenario(site: Site) -> None:
        assert (await site.http.get("/health")).json() == {"status": "ok"}
        assert (await site.http.get("/ready")).json() == {"status": "ok"}
        assert (await site.http.get("/version")).json() == {"version": __version__}
        assert (await site.http.get("/load")).json() == {"server_load": 0}
        (model,) = (await site.openai.models.list()).data
        assert model.id == MODEL
        assert (await site.openai.models.retrieve(MODEL)).id == MODEL
        assert (await site.http.get("/v1/models/other")).status_code == 404

    on(scenario)


def test_metrics_have_the_names_that_dashboards_look_for() -> None:
    async def scenario(site: Site) -> None:
        for _ in range(3):
            await site.post(PATH, prompt="the quick", max_tokens=7, ignore_eos=True)
        response = await site.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        samples = {
            sample.name: sample
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }
        for name in DASHBOARD:
            assert f"vllm:{name}" in samples
        assert samples["vllm:generation_tokens_total"].value == 21
        assert samples["vllm:generation_tokens_total"].labels == {
            "model_name": MODEL,
            "engine": "0",
        }
        assert samples["vllm:e2e_request_latency_seconds_count"].value == 3
        assert samples["vllm:cache_config_info"].labels["block_size"] == "4"

    on_its_own_server(scenario)


def test_paused_requests_wait_are_aborted_by_their_id_and_explained() -> None:
    async def scenario(site: Site) -> None:
        assert (await site.http.post("/pause?mode=all")).json() == {"status": "paused"}
        headers = {"X-Request-Id": "mine/1"}
        asked = asyncio.create_task(site.http.post(PATH, json=LONG, headers=headers))
        await site.until(lambda: "mine/1" in site.context.open_requests)
        assert (await site.http.get("/load")).json() == {"server_load": 1}
        explanation = await site.http.get("/requests/mine/1/explain")
        assert "mine/1" in explanation.text
        ended = await site.post("/abort_requests", request_ids=["mine/1", "nobody's"])
        await site.http.post("/resume")
        assert ended.json() == {"aborted": ["mine/1"]}
        response = await asked
        assert response.headers["x-request-id"] == "mine/1"
        assert response.json()["id"] == "mine/1"
        assert response.json()["choices"][0]["finish_reason"] == "abort"

    on_its_own_server(scenario, breaks=paced)


@pytest.mark.parametrize("mode", ["new", "all", "keep"])
def test_a_pause_is_told_until_it_is_over(mode: str) -> None:
    async def scenario(site: Site) -> None:
        async def paused() -> bool:
            return (await site.http.get("/is_paused")).json() == {"is_paused": True}

        assert not await paused()
        await site.http.post(f"/pause?mode={mode}")
        assert await paused()
        assert site.scheduler.paused == ("new" if mode == "new" else "all")
        await site.http.post("/resume")
        assert not await paused()

    on_its_own_server(scenario)


@pytest.mark.parametrize(("mode", "reason"), [("wait", "length"), ("abort", "abort")])
def test_a_pause_may_wait_for_running_requests_or_abort_all(mode: str, reason: str) -> None:
    async def scenario(site: Site) -> None:
        running = asyncio.create_task(site.post(PATH, **LONG))
        await site.until_told()
        assert (await site.http.post(f"/pause?mode={mode}")).json() == {"status": "paused"}
        assert site.scheduler.view.gauges().running == 0
        assert (await running).json()["choices"][0]["finish_reason"] == reason
        later = asyncio.create_task(site.post(PATH, **{**LONG, "max_tokens": 2}))
        await site.until(lambda: site.scheduler.view.gauges().waiting == 1)
        await site.http.post("/resume")
        assert (await later).json()["choices"][0]["finish_reason"] == "length"

    on_its_own_server(scenario, breaks=paced)


def test_all_parts_of_a_request_are_aborted_together() -> None:
    async def scenario(site: Site) -> None:
        await site.http.post("/pause")
        body = {**LONG, "prompt": ["the", "quick"], "stream": True}
        headers = {"X-Request-Id": "two"}
        asked = asyncio.create_task(site.http.post(PATH, json=body, headers=headers))
        await site.until(lambda: "two" in site.context.open_requests)
        assert (await site.post("/abort_requests", request_ids=["two"])).json() == {
            "aborted": ["two"]
        }
        reasons = [
            json.loads(event[6:])["choices"][0]["finish_reason"]
            for event in (await asked).text.split("\n\n")[:-2]
        ]
        assert reasons.count("abort") == 2

    on_its_own_server(scenario)


def test_parts_have_names_that_no_client_can_send() -> None:
    async def scenario(site: Site) -> None:
        await site.http.post("/pause")
        body = {**LONG, "prompt": ["the", "quick"], "max_tokens": 3}
        two = asyncio.create_task(site.http.post(PATH, json=body, headers={"X-Request-Id": "two"}))
        await site.until(lambda: "two" in site.context.open_requests)
        others = [
            asyncio.create_task(site.http.post(PATH, json=LONG, headers={"X-Request-Id": name}))
            for name in ("two-0", "two-1", "two%200")
        ]
        await site.until(lambda: len(site.context.open_requests) == 4)
        await site.http.post("/resume")
        assert [(await one).status_code for one in (two, *others)] == [200] * 4

    on_its_own_server(scenario)


def test_all_parts_of_a_request_are_explained() -> None:
    async def scenario(site: Site) -> None:
        async def explanation(name: str) -> httpx.Response:
            return await site.http.get(f"/requests/{quote(name)}/explain")

        await site.http.post("/pause")
        body = {**LONG, "prompt": ["the", "the quick", "hello"], "max_tokens": 3}
        asked = asyncio.create_task(
            site.http.post(PATH, json=body, headers={"X-Request-Id": "three"})
        )
        await site.until(lambda: len(site.open_here) == 3)
        heads = [f"'three {part}': " for part in range(3)]
        waiting = (await explanation("three")).text
        assert [line for line in waiting.splitlines() if "; waiting." in line]
        assert all(head in waiting for head in heads)
        await site.http.post("/resume")
        await asked
        ended = await explanation("three")
        assert [
            line[: len(heads[0])] for line in ended.text.splitlines() if line[0] == "'"
        ] == heads
        assert (await explanation("three 1")).text in ended.text
        assert (await explanation("three 3")).status_code == 404
        await site.post(PATH, **{**body, "prompt": ["the", "quick"]})
        assert (await explanation("three")).text.startswith(heads[2])  # the journal is short
        await site.post(PATH, **body)
        lost = await explanation("three")
        assert (lost.status_code, lost.json()["error"]["param"]) == (404, "request_id")
        said = lost.json()["error"]["message"]
        assert "older than the last 3 finished requests: raise journal_requests" in said

    on_its_own_server(scenario, journal_requests=3)


def test_an_id_that_is_in_use_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.server.context.REMEMBERED_IDS", 1)

    async def scenario(site: Site) -> None:
        async def ask(name: str) -> httpx.Response:
            return await site.http.post(PATH, json=LONG, headers={"X-Request-Id": name})

        await site.http.post("/pause")
        asked = [asyncio.create_task(ask("same"))]
        await site.until(lambda: "same" in site.context.open_requests)
        asked += [asyncio.create_task(ask(name)) for name in ("other", "same")]
        await site.until(lambda: len(site.context.open_requests) == 3)
        await site.http.post("/resume")
        assert [(await one).status_code for one in asked] == [200] * 3

    on_its_own_server(scenario)


def test_an_id_used_twice_names_two_requests() -> None:
    async def scenario(site: Site) -> None:
        async def ask() -> httpx.Response:
            body = {"prompt": "the", "max_tokens": 20}
            return await site.http.post(PATH, json=body, headers={"X-Request-Id": "same"})

        one, two = await asyncio.gather(ask(), ask())
        assert one.status_code == two.status_code == 200
        assert one.headers["x-request-id"] == two.headers["x-request-id"] == "same"
        assert one.json()["id"] != two.json()["id"]

    on_its_own_server(scenario, breaks=paced)


def test_the_prefix_cache_can_be_emptied() -> None:
    async def scenario(site: Site) -> None:
        body = {"prompt": "the quick brown fox jumps over the lazy dog", "max_tokens": 1}
        cached: list[int] = []
        for _ in range(2):
            got = (await site.post(PATH, **body)).json()
            cached.append(got["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[1] > cached[0] == 0
        assert (await site.http.post("/reset_prefix_cache")).json() == {"reset": True}
        got = (await site.post(PATH, **body)).json()
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    on_its_own_server(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/requests/nobody/explain", None, 404),
        ("POST", "/pause?mode=half", None, 400),
        ("POST", "/abort_requests", {"request_ids": "one"}, 400),
        ("POST", "/abort_requests", {}, 400),
        ("GET", "/abort_requests", None, 405),
        ("GET", "/nowhere", None, 404),
        ("GET", "/docs", None, 404),
        ("GET", "/redoc", None, 404),
    ],
)
def test_errors_have_the_shape_of_openai(
    on: Play, method: str, path: str, body: object, status: int
) -> None:
    async def scenario(site: Site) -> None:
        headers = {"X-Request-Id": "given"}
        response = await site.http.request(method, path, json=body, headers=headers)
        assert response.status_code == status
        assert response.headers["x-request-id"] == "given"
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)

    on(scenario)


def test_another_method_is_answered_with_those_that_there_are(on: Play) -> None:
    async def scenario(site: Site) -> None:
        response = await site.http.get("/abort_requests")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")

    on(scenario)


def test_a_field_at_fault_is_named_below_a_prefix_of_the_path_too() -> None:
    api_error = api_error_of(PromptTooLong("too long"), "/models/own/v1/completions")
    assert (api_error.param, api_error.code) == ("prompt", "context_length_exceeded")


@pytest.mark.parametrize(("length", "kept"), [(1, True), (200, True), (201, False)])
def test_an_id_of_a_client_is_kept_up_to_a_length(length: int, kept: bool) -> None:
    client = ClientHeaders.of({"x-request-id": "x" * length}, "cmpl")
    assert client.request_id.startswith("x" * length if kept else "cmpl-")


@pytest.mark.parametrize("kind", [None, "application/json"])
def test_a_wrong_parameter_is_named(on: Play, kind: str | None) -> None:
    async def scenario(site: Site) -> None:
        headers = {"Content-Type": kind} if kind else {}
        for path, param, reason in [
            ("/pause?mode=half", "mode", "'new', 'wait', 'all', 'keep' or 'abort'"),
            ("/reset_prefix_cache?reset_running_requests=7", "reset_running_requests", "boolean"),
        ]:
            response = await site.http.post(path, headers=headers)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param)
            assert error["message"].startswith(f"{param}: ")
            assert reason in error["message"]

    on(scenario)
