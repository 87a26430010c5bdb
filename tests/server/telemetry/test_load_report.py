"""The load in a header, as load balancers ask for it."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.server.scoreboard import LoadReport
from tests.server.conftest import Play
from tests.server.support import Site

TALK = [{"role": "user", "content": "hello"}]
NAMES = ["kv_cache_usage_perc", "num_requests_waiting"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": TALK}),
        ("/v1/completions", {"prompt": "the"}),
        ("/v1/responses", {"input": "the"}),
    ],
)
def test_an_answer_has_the_load_if_it_is_asked_for(
    on: Play, path: str, body: dict[str, Any], stream: bool
) -> None:
    async def scenario(site: Site) -> None:
        async def load(kind: str) -> str | None:
            headers = {"endpoint-load-metrics-format": kind}
            sent = {**body, "max_tokens": 2, "stream": stream}
            response = await site.http.post(path, json=sent, headers=headers)
            assert response.status_code == 200
            return response.headers.get("endpoint-load-metrics")

        kind, _, report = (await load("json") or "").partition(" ")
        assert kind == "JSON"
        named = json.loads(report)["named_metrics"]
        assert list(named) == NAMES
        assert all(isinstance(value, float) for value in named.values())
        kind, _, report = (await load("TEXT") or "").partition(" ")
        assert kind == "TEXT"
        assert [one.partition("=")[0] for one in report.split(", ")] == [
            f"named_metrics.{name}" for name in NAMES
        ]
        assert await load("BINARY") is None

    on(scenario)


def test_requests_at_the_same_time_ask_the_engine_once() -> None:
    asked = 0

    async def reports() -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        engines = (
            {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3},
            {"kv_cache_usage_perc": 0.75, "num_requests_waiting": 0},
        )
        return [SimpleNamespace(gauges=one) for one in engines]

    async def play() -> None:
        report = LoadReport(reports)
        found = await asyncio.gather(*(report.header("TEXT") for _ in range(5)))
        expected = b"TEXT named_metrics.kv_cache_usage_perc=0.5, "
        assert found == [expected + b"named_metrics.num_requests_waiting=3.0"] * 5

    asyncio.run(play())
    assert asked == 1
