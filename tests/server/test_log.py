"""One line of JSON for each request, whatever its end."""

import asyncio
import json
import logging
from typing import Any

import pytest

from paceline.server.log import JsonLines
from tests.server.support import Site, on_its_own_server, paced

PATH = "/v1/completions"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_every_request_leaves_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paceline.requests")

    async def scenario(site: Site) -> None:
        for name, extra in [
            ("whole", {"user": "ann"}),
            ("streamed", {"stream": True}),
            ("refused", {"prompt": [10**6]}),
            ("plain", {}),
        ]:
            headers = {
                "X-Request-Id": name,
                "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
            }
            body = {"prompt": "the", "max_tokens": 3, "ignore_eos": True, **extra}
            await site.http.post(PATH, json=body, headers=headers)
        body = {"prompt": "the", "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with site.http.stream(
            "POST", PATH, json=body, headers={"X-Request-Id": "gone"}
        ) as response:
            await anext(response.aiter_lines())
        await site.until(lambda: site.empty)
        await asyncio.sleep(0)

    on_its_own_server(scenario, breaks=paced)
    records = [record for record in caplog.records if record.name == "paceline.requests"]
    lines: list[dict[str, Any]] = [json.loads(JsonLines().format(record)) for record in records]
    by_id = {line["request_id"]: line for line in lines}
    assert len(by_id) == len(lines) == 5
    whole = by_id["whole"]
    assert whole["tenant"] == "ann"
    assert whole["trace_id"] == TRACE
    assert whole["path"] == PATH
    assert whole["completion_tokens"] == 3
    assert whole["finish_reasons"] == ["length"]
    assert whole["total_s"] > 0
    assert whole["outcome"] == "finished"
    assert by_id["streamed"]["stream"] is True
    assert by_id["refused"]["outcome"] == "refused"
    assert "vocabulary" in by_id["refused"]["reason"]
    assert by_id["gone"]["outcome"] == "aborted"
    assert by_id["gone"]["completion_tokens"] >= 1
    (told,) = [r.getMessage() for r in records if r.getMessage().startswith("whole ")]
    assert "/v1/completions: finished; 2 tokens in, 0 of them cached, 3 out" in told


def test_other_records_are_objects_too() -> None:
    record = logging.LogRecord("paceline.x", logging.WARNING, "", 0, "%d left", (3,), None)
    told = json.loads(JsonLines().format(record))
    assert told.pop("time")
    assert told == {"level": "WARNING", "logger": "paceline.x", "message": "3 left"}
