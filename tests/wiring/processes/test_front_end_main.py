"""One server of several processes, whichever of them a client talks to."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from paceline.runner.models.config import ModelConfig
from tests.runner.adapters.support import write_adapter
from tests.wiring.support import PATIENCE_S, until

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "the quick", "max_tokens": 240, "ignore_eos": True}
ENGINE = ("--load-format", "dummy", "--kv-cache-gib", "0.01", "--max-num-seqs", "4")
ADAPTERS = ("--enable-lora", "--max-loras", "2", "--allow-runtime-lora-updating")
KEY = "a-secret-key"


class SeveralProcesses:
    """A server with two front ends, and connections to one or the other."""

    def __init__(self, folder: Path, cache: Path, *flags: str) -> None:
        self._path = str(cache / "s.sock")
        self.lines: list[str] = []
        ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PACELINE_API_KEY": KEY}
        command = [sys.executable, "-m", "paceline", "serve", str(folder), *ENGINE, *ADAPTERS]
        self.process = subprocess.Popen(
            [*command, "--uds", self._path, "--drain-s", "100", "--api-server-count", "2", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ours, "PACELINE_CACHE": str(cache)},
        )
        self._collecting = Thread(target=self._collect, daemon=True)
        self._collecting.start()
        self.url = until(self._listening)
        self._clients = ExitStack()

    def _collect(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append(line)

    def _listening(self) -> str:
        assert self.process.poll() is None, "".join(self.lines)
        found = re.search(r"2 front ends listen at (\S+) ", "".join(self.lines))
        return found[1] if found else ""

    def children(self, module: str) -> list[int]:
        own = self.process.pid
        found: list[int] = []
        for pid in map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split()):
            with suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{pid}/cmdline").read_text()
                assert KEY not in words
                found += [pid] if module in words else []
        return found

    @property
    def front_ends(self) -> list[int]:
        return self.children("front_end_main")

    @property
    def cores(self) -> list[int]:
        return self.children("process_main")

    @property
    def core(self) -> int:
        (found,) = self.cores
        return found

    def client(self, *others: int) -> httpx.Client:
        """A client with one connection, to a front end that is not one of the others."""
        one = httpx.HTTPTransport(uds=self._path, limits=httpx.Limits(max_connections=1))
        client = self._clients.enter_context(
            httpx.Client(
                base_url="http://paceline",
                transport=one,
                timeout=PATIENCE_S,
                headers={"Authorization": f"Bearer {KEY}"},
            )
        )
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        client.get("/version").raise_for_status()
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        return client

    def both(self) -> tuple[httpx.Client, httpx.Client]:
        """A connection to each of the two front ends."""
        one, other = self.front_ends
        return self.client(other), self.client(one)

    def end(self) -> tuple[int, str]:
        """Its status, and what it logged."""
        status = self.process.wait(PATIENCE_S)
        self._collecting.join()
        return status, "".join(self.lines)

    def close(self) -> None:
        self._clients.close()
        self.process.kill()
        self.end()


@contextmanager
def stream(client: httpx.Client, **more: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun."""
    with client.stream("POST", PATH, json={**LONG, "stream": True, **more}) as response:
        assert response.status_code == 200, response.read()
        lines = (line for line in response.iter_lines() if line)
        assert 'finish_reason":null' in next(lines).replace(" ", "")
        yield lines


def figure(client: httpx.Client, name: str, **labels: str) -> float:
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = client.get("/metrics").text.splitlines()
    found = [one for one in lines if one.startswith((name + "{", name + " "))]
    return sum(float(one.split()[-1]) for one in found if all(label in one for label in wanted))


def tokens(client: httpx.Client) -> float:
    return figure(client, "vllm:generation_tokens_total")


def open_sockets(pid: int) -> int:
    files = Path(f"/proc/{pid}/fd").iterdir()
    return sum(os.readlink(file).startswith("socket:") for file in files)


def connections_spread(server: SeveralProcesses) -> None:
    before = [open_sockets(pid) for pid in server.front_ends]
    for _ in range(8):
        server.client()
    after = [open_sockets(pid) for pid in server.front_ends]
    opened = [new - old for old, new in zip(before, after, strict=True)]
    assert sum(opened) == 8
    assert min(opened) >= 2, opened


def ids_are_unique_and_figures_are_added_up(server: SeveralProcesses) -> None:
    clients = server.both()
    named = {"X-Request-Id": "mine"}
    answers = [
        one.post(PATH, json={**LONG, "max_tokens": 3}, headers=named).json() for one in clients
    ]
    assert answers[0]["id"] == "mine"
    assert re.fullmatch("mine-[0-9a-f]{8}", answers[1]["id"])
    assert [one["usage"]["completion_tokens"] for one in answers] == [3, 3]
    for client in clients:
        assert tokens(client) == 6
        assert figure(client, "http_requests_total", handler=PATH, status="200") == 2
        assert "submitted" in client.get("/requests/mine/explain").text
    pair = {**LONG, "prompt": ["the", "quick"], "max_tokens": 2}
    clients[0].post(PATH, json=pair, headers={"X-Request-Id": "pair"})
    told = [client.get("/requests/pair/explain").text for client in clients]
    assert told[0] == told[1]
    assert told[0].count("submitted") == 2
    assert clients[1].get("/requests/none/explain").status_code == 404
    assert clients[0].get("/load", headers={"Authorization": ""}).status_code == 401


def one_front_end_controls_the_requests_of_all(server: SeveralProcesses) -> None:
    (one, other), (here, there), (third, _) = server.both(), server.both(), server.both()
    with (
        stream(here, prompt=["the", "fox"]) as first,
        stream(there) as second,
        ThreadPoolExecutor() as pool,
    ):
        assert one.post("/pause", params={"mode": "all"}).status_code == 200
        assert other.get("/is_paused").json() == {"is_paused": True}
        assert [client.get("/load").json()["server_load"] for client in (one, other)] == [2, 2]
        assert figure(other, "vllm:num_requests_running") == 3
        waiting = {"X-Request-Id": "waiting"}
        queued = pool.submit(third.post, PATH, json=LONG, headers=waiting)
        until(lambda: one.get("/load").json()["server_load"] == 3)
        asked = {"request_ids": ["waiting", "unknown"]}
        assert other.post("/abort_requests", json=asked).json() == {"aborted": ["waiting"]}
        assert queued.result().json()["choices"][0]["finish_reason"] == "abort"
        assert other.post("/pause", params={"mode": "abort"}).status_code == 200
        assert '"abort"' in "".join(first)
        assert '"abort"' in "".join(second)
    assert one.post("/reset_prefix_cache").json() == {"reset": True}
    assert other.post("/resume").status_code == 200
    assert one.get("/is_paused").json() == {"is_paused": False}
    assert figure(one, "vllm:request_success_total", finished_reason="abort") == 4


def responses_are_found_whichever_process_has_them(server: SeveralProcesses) -> None:
    one, other = server.both()
    asked = {"input": "the quick", "max_output_tokens": 3, "ignore_eos": True}
    first = one.post("/v1/responses", json=asked).json()
    path = f"/v1/responses/{first['id']}"
    assert other.get(path).json() == first
    second = other.post("/v1/responses", json={**asked, "previous_response_id": first["id"]})
    assert second.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    items = one.get(f"/v1/responses/{second.json()['id']}/input_items").json()
    assert len(items["data"]) == 3
    one.post("/pause", params={"mode": "all"})  # so that it does not end by itself
    long = one.post("/v1/responses", json={**asked, "background": True}).json()
    assert other.get(f"/v1/responses/{long['id']}").json()["status"] in ("queued", "in_progress")
    one.post("/resume")
    ended = other.post(f"/v1/responses/{long['id']}/cancel").json()
    assert ended["status"] in ("cancelled", "incomplete")
    streamed = one.post("/v1/responses", json={**asked, "background": True, "stream": True}).text
    name = json.loads(streamed.splitlines()[1].removeprefix("data: "))["response"]["id"]
    again = other.get(f"/v1/responses/{name}?stream=true&starting_after=1").text
    assert streamed.split("\n\n")[2:] == again.split("\n\n")
    assert other.delete(path).json()["deleted"]
    assert [client.get(path).status_code for client in (one, other)] == [404, 404]
    assert other.delete(path).status_code == 404


def said(client: httpx.Client, model: str) -> str:
    """What a model, or an adapter, says; or why it says nothing."""
    asked = {**LONG, "model": model, "max_tokens": 6, "temperature": 0}
    answer = client.post(PATH, json=asked).json()
    return answer["error"]["message"] if "error" in answer else answer["choices"][0]["text"]


def listed_models(client: httpx.Client) -> list[str]:
    return [one["id"] for one in client.get("/v1/models").json()["data"]][1:]


def adapters_are_loaded_and_unloaded_for_all(server: SeveralProcesses, folder: Path) -> None:
    """When the client gets its answer, every front end knows of the change."""
    one, other = server.both()
    (model,) = (first["id"] for first in one.get("/v1/models").json()["data"])
    for name in ("kept", "gone"):
        body = {"lora_name": name, "lora_path": str(folder)}
        assert one.post("/v1/load_lora_adapter", json=body).status_code == 200
        assert listed_models(other) == listed_models(one)
        assert said(other, name) == said(one, name) != said(one, model)
    body = {"lora_name": "gone"}
    assert other.post("/v1/unload_lora_adapter", json=body).status_code == 200
    for client in (one, other):
        assert listed_models(client) == ["kept"]
        assert "the model 'gone' does not exist" in said(client, "gone")


def a_front_end_that_is_killed_takes_only_its_own_connections_along(
    server: SeveralProcesses,
) -> None:
    victim, other = server.front_ends
    (lost_one, kept_one), (_, client) = server.both(), server.both()
    with stream(lost_one) as lost, stream(kept_one) as kept:
        client.post("/pause", params={"mode": "all"})  # so that they do not end by themselves
        before = tokens(client)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lost)
        until(lambda: figure(client, "vllm:num_requests_running") == 1)
        assert client.get("/load").json() == {"server_load": 1}
        client.post("/resume")
        assert [*kept][-1] == "data: [DONE]"
    until(lambda: len(server.front_ends) == 2 and victim not in server.front_ends)
    assert tokens(client) > before
    until(lambda: "another one is started" in "".join(server.lines))
    (successor,) = {*server.front_ends} - {other}
    answer = server.client(other).post(PATH, json={**LONG, "max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert successor in server.front_ends
    assert tokens(client) > before + 3


def a_front_end_that_gets_a_signal_drains_alone(server: SeveralProcesses) -> None:
    one, other = server.front_ends
    (leaving, client) = server.both()
    with stream(leaving) as lines:
        client.post("/pause", params={"mode": "all"})
        os.kill(one, signal.SIGTERM)
        newcomer = server.client()  # accepted by the other one
        assert newcomer.get("/ready").status_code == 200
        client.post("/resume")
        assert [*lines][-1] == "data: [DONE]"
    until(lambda: one not in server.front_ends and len(server.front_ends) == 2)
    server.client(other)


def every_front_end_notices_that_the_core_dies(server: SeveralProcesses) -> None:
    (one, other), (here, there), core = server.both(), server.both(), server.core
    adapted = said(one, "kept")
    with stream(here) as first, stream(there) as second:
        os.kill(core, signal.SIGKILL)
        for client in (one, other):
            until(lambda client=client: client.get("/ready").status_code == 503)
            assert "process has died with code -9" in client.get("/health").text
            refused = client.post(PATH, json=LONG)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
        assert [*first][-1] == [*second][-1] == "data: [DONE]"
    for client in (one, other):
        until(lambda client=client: client.get("/health").status_code == 200)
        assert figure(client, "paceline:engine_crashes_total") == 1
        assert "last_failure_s" not in client.get("/health").json()
        answer = client.post(PATH, json={**LONG, "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert said(client, "kept") == adapted, "adapters are loaded again"
        assert "does not exist" in said(client, "gone")


def a_signal_to_the_server_lets_open_streams_finish(server: SeveralProcesses) -> None:
    (one, other), (here, _) = server.both(), server.both()
    with stream(here) as first, stream(other) as second:
        one.post("/pause", params={"mode": "all"})
        for pid in (*server.front_ends, server.process.pid):  # as service managers do
            os.kill(pid, signal.SIGTERM)
        until(lambda: one.get("/ready").status_code == 503)
        one.post("/resume")
        assert [*first][-1] == [*second][-1] == "data: [DONE]"


def test_a_server_of_several_processes_is_one_server(model: Path, tmp_path: Path) -> None:
    config = ModelConfig.of_hf(json.loads((model / "config.json").read_text()))
    adapter = write_adapter(tmp_path / "adapter", config)
    server = SeveralProcesses(model, tmp_path)
    try:
        (listed,) = (json.loads(one.read_text()) for one in tmp_path.glob("servers/*.json"))
        assert (listed["pid"], listed["url"]) == (server.process.pid, server.url)
        assert server.url == f"unix:{tmp_path / 's.sock'}"
        connections_spread(server)
        ids_are_unique_and_figures_are_added_up(server)
        one_front_end_controls_the_requests_of_all(server)
        responses_are_found_whichever_process_has_them(server)
        adapters_are_loaded_and_unloaded_for_all(server, adapter)
        a_front_end_that_is_killed_takes_only_its_own_connections_along(server)
        a_front_end_that_gets_a_signal_drains_alone(server)
        every_front_end_notices_that_the_core_dies(server)
        a_signal_to_the_server_lets_open_streams_finish(server)
        status, said = server.end()
        assert status == 0
        assert "Traceback" not in said
        assert not list(tmp_path.glob("servers/*.json"))
        assert not (tmp_path / "s.sock").exists()
    finally:
        server.close()
