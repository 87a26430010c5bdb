"""HTTP requests are counted once, by the template of their route."""

import asyncio
from typing import Any

import numpy as np
import pytest

from paceline.server.settings import ServerSettings
from paceline.server.telemetry.http_metrics import HttpMetrics, MeasuredRequests
from tests.server.support import Site, on_its_own_server
from tests.server.telemetry.test_prometheus import families

PATH = "/v1/completions"


def counted(metrics: HttpMetrics) -> dict[tuple[str, ...], int]:
    counter, duration = metrics.collect()
    keys = ("handler", "method", "status")
    found = {tuple(one.labels[key] for key in keys): int(one.value) for one in counter.samples}
    ends = [one for one in duration.samples if one.name.endswith("_count")]
    assert found == {tuple(one.labels[key] for key in keys): int(one.value) for one in ends}
    return found


def test_every_answer_counts_with_its_route_and_status() -> None:
    async def scenario(site: Site) -> None:
        key = {"Authorization": "Bearer key"}
        site.http.headers.update(key)
        body = {"prompt": "the", "max_tokens": 2}
        for more in ({}, {"stream": True}, {"n": "two"}, {"prompt": ["the"] * 99}):
            await site.post(PATH, **(body | more))
        await site.http.get("/requests/none/explain")
        await site.http.get("/v1/models/one/two")
        await site.http.get("/health?x=1")
        await site.http.head("/health")
        await site.http.get("/no/such/route")
        await site.http.request("PROPFIND", PATH)
        await site.http.get("/version", headers={"Authorization": "Bearer wrong"})
        await site.http.post(PATH, content=b"x" * 3000)
        assert counted(site.context.http_metrics) == {
            (PATH, "POST", "200"): 2,
            (PATH, "POST", "400"): 1,
            (PATH, "POST", "429"): 1,
            (PATH, "POST", "413"): 1,
            (PATH, "other", "405"): 1,
            ("/requests/{request_id:path}/explain", "GET", "404"): 1,
            ("/v1/models/{name:path}", "GET", "404"): 1,
            ("/health", "GET", "200"): 1,
            ("/health", "HEAD", "200"): 1,
            ("/version", "GET", "401"): 1,
            ("none", "GET", "404"): 1,
        }
        assert "http_requests" in await families(site)

    settings = ServerSettings(api_keys=("key",), body_bytes=2000)
    on_its_own_server(scenario, settings, max_num_seqs=4, max_num_queued_reqs=4)


def test_a_client_that_leaves_before_a_status_counts_as_499() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        asking = asyncio.create_task(site.post(PATH, prompt="the"))
        await site.until(lambda: len(site.context.open_requests) == 1)
        asking.cancel()
        await site.until(lambda: bool(counted(site.context.http_metrics)))
        assert counted(site.context.http_metrics) == {(PATH, "POST", "499"): 1}

    on_its_own_server(scenario)


def test_an_error_that_is_answered_outside_counts_as_500() -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ZeroDivisionError

    metrics = HttpMetrics()
    scope = {"type": "http", "path": "/x", "method": "GET"}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(MeasuredRequests(broken, metrics)(scope, None, None))  # type: ignore[arg-type]
    assert counted(metrics) == {("none", "GET", "500"): 1}


def test_the_counts_of_all_processes_are_added_and_a_successor_continues() -> None:
    rows = np.zeros((2, 7 + HttpMetrics.SIZE))[:, 7:]  # a part of a wider table

    def process(row: int) -> HttpMetrics:
        found = HttpMetrics(rows, row)
        found.set_routes(["/health", "/v1/models/{name:path}"])
        return found

    first, second = process(0), process(1)
    for metrics, path in ((first, "/health"), (second, "/v1/models/x"), (second, "/health")):
        metrics.ended(path, "GET", 200, 0.5)
    expected = {("/health", "GET", "200"): 2, ("/v1/models/{name:path}", "GET", "200"): 1}
    assert counted(first) == counted(second) == expected
    successor = process(0)
    for status in (200, 503):
        successor.ended("/health", "GET", status, 0.5)
    assert counted(second) == expected | {
        ("/health", "GET", "200"): 3,
        ("/health", "GET", "503"): 1,
    }


def test_too_many_combinations_of_labels_share_one() -> None:
    metrics = HttpMetrics()
    for status in range(HttpMetrics.SLOTS + 9):
        metrics.ended("/x", "GET", 100 + status, 0.1)
    found = counted(metrics)
    assert len(found) == HttpMetrics.SLOTS
    assert found["none", "other", "other"] == 10
