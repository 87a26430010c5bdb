"""The real server with a small real model, when its engine's process stalls or is killed."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.real import Running, running

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "the quick", "max_tokens": 240, "ignore_eos": True}


@contextmanager
def stopped_in_a_stream(server: Running) -> Iterator[Iterator[str]]:
    """The engine's process stands still while a stream is open; the lines that follow."""
    core = server.core  # to look for it takes a while, in which a stream may end
    with server.http.stream("POST", PATH, json={**LONG, "stream": True}) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line)
        first = json.loads(next(lines).removeprefix("data: "))
        os.kill(core, signal.SIGSTOP)
        assert first["choices"][0]["finish_reason"] is None
        yield lines


@contextmanager
def live_page(server: Running) -> Iterator[Iterator[Any]]:
    """What an open page learns about the status of the engine."""
    with server.http.stream("GET", "/dashboard/events") as response:
        lines = response.iter_lines()
        assert next(lines) == "event: start"
        yield (json.loads(next(lines)[6:]) for line in lines if line == "event: status")


def answered(server: Running) -> None:
    response = server.http.post(PATH, json={**LONG, "max_tokens": 3})
    assert response.json()["usage"]["completion_tokens"] == 3


def test_an_engine_that_stalls_or_dies_comes_back_and_is_given_up_in_the_end(folder: Path) -> None:
    with running(folder, stall_s=0.3, core_restarts=1) as server:
        assert server.http.get("/v1/models").json()["data"][0]["max_model_len"] == 256
        with stopped_in_a_stream(server) as lines:
            assert "no step has ended" in server.until("/health", 503).text
            os.kill(server.core, signal.SIGCONT)
            server.until("/health", 200)
            assert [*lines][-1] == "data: [DONE]"
        with live_page(server) as page:
            with stopped_in_a_stream(server) as lines:
                os.kill(server.core, signal.SIGKILL)
                *_, last = lines
                error = json.loads(last.removeprefix("data: "))["error"]
                assert error["code"] == "engine_failed"
                assert "process has died with code -9" in error["message"]
            assert "is being restarted" in server.until("/health", 503).text
            refused = server.http.post(PATH, json=LONG)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            figures = server.http.get("/metrics").text
            assert re.search(r"paceline:engine_healthy{.*} 0.0", figures)
            assert re.search(r"paceline:engine_crashes_total{.*} 1.0", figures)
            server.until("/health", 200)
            died, back = next(page), next(page)
            assert "process has died with code -9" in died["trouble"]
            assert (back["trouble"], back["restarts"]) == ("", 1)
        answered(server)
        with stopped_in_a_stream(server) as lines:
            os.kill(server.core, signal.SIGKILL)
            assert "engine_failed" in [*lines][-1]
        status, said = server.ended()
        assert status == 3
        assert "process has died with code -9" in said
        assert said.endswith("False\n"), "the front end imports torch"


def test_the_engine_may_run_on_a_thread(folder: Path) -> None:
    with running(folder, core="thread", max_queued_tokens=5) as server:
        answered(server)
        server.http.post("/pause")
        pair = {**LONG, "prompt": [[1, 2, 3], [4, 5, 6]], "timeout": 10}
        refused = server.http.post(PATH, json=pair)
        assert refused.status_code == 429, "settings of the engine count there as well"
        server.http.post("/resume")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == (0, "True\n")
