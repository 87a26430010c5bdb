"""The real server with a small real model, when its engine's process stalls or is killed."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.server.real import Running, running

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "the quick", "max_tokens": 240, "ignore_eos": True}
SOME = {**LONG, "max_tokens": 100}


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


def text_of(lines: list[str]) -> tuple[str, int]:
    """The text of the rest of a stream, which ends well, and its number of tokens."""
    *events, done = lines
    assert done == "data: [DONE]"
    chunks = [json.loads(one.removeprefix("data: ")) for one in events]
    text = "".join(one["choices"][0]["text"] for one in chunks if one["choices"])
    return text, chunks[-1]["usage"]["completion_tokens"]


def kill_all(server: Running, engines: int) -> None:
    """Once all have been restarted, if they were."""
    while len(server.cores) < engines or server.http.get("/health").json() != {"status": "ok"}:
        sleep(0.05)
    for pid in server.cores:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("engines", [1, 2])
def test_requests_outlive_engines_that_all_die(folder: Path, engines: int) -> None:
    """Greedy and seeded streams, and answers without a stream, have the texts that they would have
    had; a request that finds the engine dead waits for the next one."""
    kinds = ({"temperature": 0}, {"temperature": 1, "seed": 5})
    with running(folder, data_parallel_size=engines) as server, ThreadPoolExecutor() as pool:
        post = partial(server.http.post, PATH)
        whole = [post(json=SOME | kind).json() for kind in kinds]
        with ExitStack() as opened:
            streams: list[Iterator[str]] = []
            for kind in kinds:
                body = SOME | kind | {"stream": True, "stream_options": {"include_usage": True}}
                response = opened.enter_context(server.http.stream("POST", PATH, json=body))
                streams.append(line for line in response.iter_lines() if line)
            begun = [json.loads(next(one).removeprefix("data: ")) for one in streams]
            server.http.post("/pause", params={"mode": "all"})
            answer = pool.submit(post, json=SOME | kinds[0])
            while server.http.get("/load").json()["server_load"] < 3:
                sleep(0.01)
            kill_all(server, engines)
            server.until("/ready", 503)
            server.until("/ready", 200)
            server.http.post("/resume")
            for before, rest, expected in zip(begun, streams, whole, strict=True):
                text, tokens = text_of([*rest])
                assert before["choices"][0]["text"] + text == expected["choices"][0]["text"]
                assert tokens == expected["usage"]["completion_tokens"]
        assert answer.result().json()["choices"] == whole[0]["choices"]
        assert re.search(r'finished_reason="error".*} 0.0', server.http.get("/metrics").text)
        kill_all(server, engines)  # while they are idle
        found = post(json=SOME | kinds[0])  # at once
        assert found.status_code in (200, 503), found.text
        if found.status_code == 503:
            assert int(found.headers["retry-after"]) >= 1
        server.until("/ready", 200)
        assert post(json=SOME | kinds[0]).json()["choices"] == whole[0]["choices"]


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
                assert "died with code -9" in server.until("/health", 503).text
                assert server.http.get("/ready").status_code == 503
                refused = server.http.post(PATH, json=LONG)
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
                figures = server.http.get("/metrics").text
                assert re.search(r"paceline:engine_healthy{.*} 0.0", figures)
                assert [*lines][-1] == "data: [DONE]"
            server.until("/health", 200)
            died, back = next(page), next(page)
            assert "process has died with code -9" in died["trouble"]
            assert (back["trouble"], back["restarts"]) == ("", 1)
            figures = server.http.get("/metrics").text
            assert re.search(r"paceline:engine_crashes_total{.*} 1.0", figures)
        answered(server)
        with stopped_in_a_stream(server) as lines:
            os.kill(server.core, signal.SIGKILL)
            error = json.loads([*lines][-1].removeprefix("data: "))["error"]
            assert error["code"] == "engine_failed"
            assert "process has died with code -9" in error["message"]
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
