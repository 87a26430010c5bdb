"""One line of JSON for each request, whatever its end."""

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import pytest

from paceline.core.events import Timings
from paceline.engine.api import EngineFailed, RequestOutput, Usage
from paceline.server.client_headers import ClientHeaders
from paceline.server.schemas.completions import spent_by
from paceline.server.telemetry.request_log import JsonFormatter, RequestLogEntry
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
    lines: list[dict[str, Any]] = [json.loads(JsonFormatter().format(record)) for record in records]
    by_id = {entry["request_id"]: entry for entry in lines}
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


def lines_of(caplog: pytest.LogCaptureFixture) -> dict[str, dict[str, Any]]:
    """By request id, each with its text for people as "said"."""
    found: dict[str, dict[str, Any]] = {}
    for record in caplog.records:
        if record.name == "paceline.requests":
            entry = json.loads(JsonFormatter().format(record))
            found[entry["request_id"]] = {**entry, "said": record.getMessage()}
    return found


STAGES = ("cached_tokens", "preemptions", "queue_s", "prefill_s", "decode_s")


def test_what_is_not_known_of_a_request_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paceline.requests")
    long = {"prompt": [7] * 9, "max_tokens": 200, "ignore_eos": True}

    async def scenario(site: Site) -> None:
        def ask(name: str, **extra: Any) -> asyncio.Task[httpx.Response]:
            headers = {"X-Request-Id": name}
            return asyncio.create_task(site.http.post(PATH, json=long | extra, headers=headers))

        hanging = [ask("whole"), ask("streamed", stream=True)]
        await site.until(lambda: len(site.context.open_requests) == 2)
        await site.until_told()
        for one in hanging:
            one.cancel()
        await site.until(lambda: site.empty)
        cut = ask("cut", timeout=1.0)
        await site.until_told()
        await site.engine.pause("all")
        assert (await cut).json()["choices"][0]["finish_reason"] == "timeout"
        await ask("refused", max_tokens=1, prompt=[10**6])
        await ask("long", prompt="the " * 4000)

    on_its_own_server(scenario, breaks=paced)
    found = lines_of(caplog)
    for name in ("whole", "streamed", "cut", "refused"):
        entry = found[name]
        assert [entry[stage] for stage in STAGES] == [None] * 5
        assert entry["prompt_tokens"] == (1 if name == "refused" else 9)
        assert entry["total_s"] > 0
        assert "in the queue" not in entry["said"]
        assert "cached" not in entry["said"]
    assert found["whole"]["completion_tokens"] is None
    assert "(the client disconnected); 9 tokens in; " in found["whole"]["said"]
    assert "; 1 token in; " in found["refused"]["said"]
    assert found["streamed"]["completion_tokens"] is not None
    assert found["cut"]["completion_tokens"] > 0
    assert found["long"]["prompt_tokens"] is None
    assert "tokens in" not in found["long"]["said"]


@pytest.mark.parametrize("stream", [False, True])
def test_who_was_not_begun_in_time_has_waited(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "paceline.requests")

    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        response = await site.post(PATH, prompt=[7] * 9, stream=stream)
        assert response.status_code == 504

    on_its_own_server(scenario, queue_timeout_s=0.05)
    (entry,) = lines_of(caplog).values()
    assert entry["outcome"] == "timeout"
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (9, 0)
    assert entry["queue_s"] >= 0.05
    assert re.search(
        r"9 tokens in, 0 of them cached, 0 out; \d+\.\d+ s in the queue", entry["said"]
    )


def test_of_several_parts_the_slowest_counts_and_tokens_add_up() -> None:
    parts = [
        RequestOutput("a", None, (1, 2), (), Usage(2, 3, 1), Timings(1.0, 5.0, 2.0, 8.0, 1)),
        RequestOutput("b", None, (1,), (), Usage(1, 4, 0), Timings(4.0, 1.0, 2.5, 7.5, 2)),
    ]
    entry, spent = RequestLogEntry("a", PATH), spent_by(parts)
    entry.account(parts)
    assert (entry.prompt_tokens, entry.completion_tokens) == (3, 7)
    for told in (entry, spent):
        assert (told.queue_s, told.prefill_s, told.decode_s, told.total_s) == (4.0, 5.0, 2.5, 8.0)
        assert (told.cached_tokens, told.preemptions) == (1, 3)


@pytest.mark.parametrize("given", ["", "nonsense", f"00-{TRACE}-short-01", f"00-{TRACE[1:]}-x"])
def test_a_trace_that_is_not_well_formed_is_none(given: str) -> None:
    client = ClientHeaders.of({"traceparent": given}, "cmpl")
    assert (client.traceparent, client.trace_id) == ("", "")


def test_a_reason_that_cannot_be_sent_is_made_readable() -> None:
    entry = RequestLogEntry("a", PATH)
    entry.end_by(EngineFailed("half a pair: \ud800"), unread=False)
    assert (entry.outcome, entry.reason) == ("failed", "half a pair: \\ud800")


def test_other_records_are_objects_too() -> None:
    record = logging.LogRecord("paceline.x", logging.WARNING, "", 0, "%d left", (3,), None)
    told = json.loads(JsonFormatter().format(record))
    assert told.pop("time")
    assert told == {"level": "WARNING", "logger": "paceline.x", "message": "3 left"}
