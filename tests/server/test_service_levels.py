"""Service levels over HTTP: of the body, the headers, the tenant of a key and the server."""

import asyncio
import re
from typing import Any

import httpx

from paceline.core.errors import TOO_LATE
from paceline.server.settings import ServerSettings
from tests.server.support import Site, on_its_own_server, slow

PATH = "/v1/completions"
GOLD, PLAIN = {"Authorization": "Bearer gold-key"}, {"Authorization": "Bearer plain-key"}
KEYS = ServerSettings(api_keys=("plain-key",), tenant_keys=("gold=gold-key",))
OUTCOME = re.compile(r'paceline:slo_requests_total{.*outcome="(\w+)"} (\d+)\.0')


async def ask(site: Site, headers: dict[str, str], **body: Any) -> httpx.Response:
    given = {"prompt": "the quick", "max_tokens": 4, "ignore_eos": True, **body}
    return await site.http.post(PATH, json=given, headers={**PLAIN, **headers})


async def outcomes(site: Site) -> dict[str, int]:
    text = (await site.http.get("/metrics")).text
    return {name: int(count) for name, count in OUTCOME.findall(text) if int(count)}


def test_targets_come_from_the_body_the_headers_the_key_or_the_server() -> None:
    async def scenario(site: Site) -> None:
        # Nothing keeps a target of a tenth of a millisecond, and anything one of a minute.
        assert (await ask(site, GOLD)).status_code == 200
        assert await outcomes(site) == {"device": 1}
        assert (await ask(site, PLAIN, user="gold")).status_code == 200  # the key decides
        assert await outcomes(site) == {"device": 1, "attained": 1}
        assert (await ask(site, {"x-slo-ttft-ms": "0.1"})).status_code == 200
        level = {"ttft_ms": 60_000, "itl_ms": 60_000}
        assert (await ask(site, {"x-slo-ttft-ms": "0.1"}, slo=level)).status_code == 200
        assert await outcomes(site) == {"device": 2, "attained": 2}

    on_its_own_server(scenario, KEYS, ttft_target_ms=60_000.0, tenant_ttft_target_ms={"gold": 0.1})


def test_wrong_targets_are_refused_by_name() -> None:
    async def scenario(site: Site) -> None:
        for headers, body in (
            ({}, {"slo": {"ttft_ms": 0}}),
            ({}, {"slo": {"ttft_ms": "soon"}}),
            ({}, {"slo": {"e2e_ms": 5}}),
            ({"x-slo-itl-ms": "fast"}, {}),
            ({"x-slo-ttft-ms": "-1"}, {}),
        ):
            response = await ask(site, headers, **body)
            assert response.status_code == 400, response.text
            assert "slo" in response.json()["error"]["message"]
        wrong = await site.http.post(PATH, json={"prompt": "a"}, headers={"Authorization": "gold"})
        assert wrong.status_code == 401

    on_its_own_server(scenario, KEYS)


def test_overload_is_refused_with_a_time_to_retry() -> None:
    async def scenario(site: Site) -> None:
        waiting = [ask(site, {}, prompt="the quick brown fox " * 20) for _ in range(24)]
        responses = await asyncio.gather(*waiting)
        refused = [one for one in responses if one.status_code == 503]
        assert 0 < len(refused) < 24
        assert refused[0].json()["error"]["message"] == TOO_LATE
        assert int(refused[0].headers["Retry-After"]) >= 1
        found = await outcomes(site)
        assert found["queue"] >= len(refused)
        assert sum(found.values()) == 24

    on_its_own_server(
        scenario, KEYS, breaks=slow, ttft_target_ms=150.0, refuse_late=True, max_num_seqs=4
    )
