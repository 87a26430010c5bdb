"""A server with two engines and two front ends, and a client that sees one server."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import zmq

from paceline.core.system.host import usable_cores
from paceline.runner.models.config import ModelConfig
from tests.engine.trace.timeline import Timeline
from tests.runner.adapters.support import write_adapter
from tests.wiring.processes.test_front_end_main import (
    LONG,
    PATH,
    SeveralProcesses,
    figure,
    said,
    stream,
)
from tests.wiring.support import until

SHORT: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}


def engine_of(client: httpx.Client, request_id: str) -> int:
    found = re.match(r"engine (\d): ", client.get(f"/requests/{request_id}/explain").text)
    assert found
    return int(found[1])


def asked(client: httpx.Client, prompt: str) -> int:
    """The engine that answered a prompt."""
    answer = client.post(PATH, json={**SHORT, "prompt": prompt})
    assert answer.status_code == 200, answer.text
    return engine_of(client, answer.json()["id"])


def groups_of_prompts_stay_together(server: SeveralProcesses) -> None:
    clients, homes = server.both(), dict[int, set[int]]()
    for turn in range(3):
        for group in range(8):
            prompt = f"{group}: the first words of all prompts of this group, {turn}"
            homes.setdefault(group, set()).add(asked(clients[(turn + group) % 2], prompt))
    assert all(len(home) == 1 for home in homes.values()), homes
    for client in clients:
        for engine in map(str, range(2)):
            groups = sum(home == {int(engine)} for home in homes.values())
            made = figure(client, "vllm:generation_tokens_total", engine=engine)
            assert made == groups * 3 * SHORT["max_tokens"] > 0
            ended = figure(client, "vllm:e2e_request_latency_seconds_count", engine=engine)
            assert ended == groups * 3
            assert figure(client, "vllm:prefix_cache_hits_total", engine=engine) >= groups * 64
            assert figure(client, "paceline:engine_healthy", engine=engine) == 1


def engines_have_cores_of_their_own(server: SeveralProcesses) -> None:
    pinned = [os.sched_getaffinity(pid) for pid in server.cores]
    assert len(pinned) == 2
    if usable_cores() > 1:
        assert not pinned[0] & pinned[1]
    assert os.sched_getaffinity(server.process.pid) == os.sched_getaffinity(0)


def adapters_are_loaded_in_every_engine(server: SeveralProcesses, folder: Path) -> str:
    client, _ = server.both()
    body = {"lora_name": "mine", "lora_path": str(folder)}
    assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
    answers = [
        client.post(PATH, json={**SHORT, "model": "mine", "prompt": f"{one} is the first"})
        for one in range(6)
    ]
    assert {answer.status_code for answer in answers} == {200}
    assert {engine_of(client, answer.json()["id"]) for answer in answers} == {0, 1}
    return said(client, "mine")


def clients_may_choose_the_engine(server: SeveralProcesses) -> None:
    for client in server.both():
        for rank in (0, 1, 0, 1):
            answer = at_rank(client, rank)
            assert engine_of(client, answer.json()["id"]) == rank


def at_rank(client: httpx.Client, rank: int) -> httpx.Response:
    headers = {"X-data-parallel-rank": str(rank)}
    return client.post(PATH, json={**SHORT, "prompt": "the same"}, headers=headers)


def rest_of(lines: Iterator[str]) -> tuple[str, int]:
    """The text of a stream behind its first event, and its number of tokens."""
    *events, done = lines
    assert done == "data: [DONE]"
    *deltas, last = [json.loads(one.removeprefix("data: ")) for one in events]
    text = "".join(one["choices"][0]["text"] for one in deltas)
    return text, last["usage"]["completion_tokens"]


def a_dead_engine_takes_no_requests_along(server: SeveralProcesses) -> int:
    """Returns the process that was killed."""
    (one, other), (third, _), (here, there) = server.both(), server.both(), server.both()
    prompts = [f"{number}: a prompt that is longer than a block" for number in range(4)]
    homes = {asked(one, prompt): prompt for prompt in prompts}
    assert {*homes} == {0, 1}
    victim = asked(one, prompts[0])
    greedy = {"prompt": homes[victim], "temperature": 0}
    whole = one.post(PATH, json={**LONG, **greedy}).json()
    with (
        stream(here, **greedy, stream_options={"include_usage": True}) as lost,
        stream(there, prompt=homes[1 - victim]) as kept,
    ):
        one.post("/pause", params={"mode": "all"})
        with ThreadPoolExecutor() as pool:
            name = {"X-Request-Id": "moved"}
            body = {**SHORT, "prompt": homes[victim]}
            moved = pool.submit(third.post, PATH, json=body, headers=name)
            until(lambda: one.get("/requests/moved/explain").status_code == 200)
            assert engine_of(one, "moved") == victim
            dead = core_of(server, victim)
            os.kill(dead, signal.SIGKILL)
            assert one.get("/ready").status_code == 200
            for client in (one, other):
                down = until(lambda client=client: client.get("/health").json().get("engines_down"))
                assert "died with code -9" in down[str(victim)]
                assert at_rank(client, victim).status_code == 503
            other_home = f"engine {1 - victim}: "  # unknown until it has moved
            until(lambda: other_home in one.get("/requests/moved/explain").text)
            one.post("/resume")
            assert moved.result().json()["usage"]["completion_tokens"] == 3
        rest, length = rest_of(lost)
        assert whole["choices"][0]["text"].endswith(rest)
        assert whole["usage"]["completion_tokens"] == length
        assert [*kept][-1] == "data: [DONE]"
        assert asked(one, homes[victim]) == 1 - victim
    for client in (one, other):
        until(lambda client=client: "engines_down" not in client.get("/health").json())
        assert figure(client, "paceline:engine_crashes_total", engine=str(victim)) == 1
        assert figure(client, "paceline:engine_crashes_total", engine=str(1 - victim)) == 0
        assert figure(client, "vllm:request_success_total", finished_reason="error") == 0
    return dead


def core_of(server: SeveralProcesses, engine: int) -> int:
    """The process of an engine. Those that were started first have the lower numbers."""
    return sorted(server.cores)[engine]


def events_name_their_engine(server: SeveralProcesses, endpoint: str) -> None:
    client, _ = server.both()
    for engine in range(2):
        with zmq.Context() as context, context.socket(zmq.SUB) as events:
            events.subscribe(b"")
            events.connect(f"{endpoint}_dp{engine}")

            def heard(events: Any = events) -> Any:
                client.post("/reset_prefix_cache")
                return events.recv_multipart() if events.poll(50) else None

            assert msgspec.msgpack.decode(until(heard)[2])[2] == engine


def all_processes_write_one_timeline(path: Path, killed: int) -> None:
    """Also an engine that took the place of a dead one."""
    found = Timeline(path, killed)
    names = Counter(found.processes.values())
    assert {*names} == {"engine 0", "engine 1", "front end 0", "front end 1"}
    assert sorted(names.values()) == [1, 1, 1, 2]
    delivered = [one for one in found.tracks()["front end"] if one["name"] == "deliver"]
    assert {one["args"]["engine"] for one in delivered} == {0, 1}
    steps = {one["pid"] for one in found.tracks()["device"]}
    assert {found.processes[pid] for pid in steps} == {"engine 0", "engine 1"}


def test_two_engines_are_one_server(model: Path, tmp_path: Path) -> None:
    config = ModelConfig.of_hf(json.loads((model / "config.json").read_text()))
    adapter = write_adapter(tmp_path / "adapter", config)
    endpoint = f"ipc://{tmp_path}/e"
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": endpoint})
    trace = tmp_path / "trace.json"
    flags = ("--data-parallel-size", "2", "--kv-events-config", events)
    server = SeveralProcesses(model, tmp_path, *flags, "--trace", str(trace))
    try:
        groups_of_prompts_stay_together(server)
        clients_may_choose_the_engine(server)
        engines_have_cores_of_their_own(server)
        events_name_their_engine(server, endpoint)
        adapted = adapters_are_loaded_in_every_engine(server, adapter)
        dead = a_dead_engine_takes_no_requests_along(server)
        client, _ = server.both()
        assert {said(client, "mine") for _ in range(4)} == {adapted}
        with stream(client, prompt="the last") as lines:
            server.process.send_signal(signal.SIGTERM)
            assert [*lines][-1] == "data: [DONE]"
        assert server.end()[0] == 0
        all_processes_write_one_timeline(trace, dead)
    finally:
        server.close()
