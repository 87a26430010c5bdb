"""A server from its start to its end."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from paceline.core.errors import ConfigError
from paceline.engine.api import GenerationRequest, TokenizedPrompt
from paceline.engine.streaming import StreamingEngine
from paceline.server.app import create_app
from paceline.server.listen import check_socket, running_servers
from paceline.server.serve import serve
from paceline.server.settings import ServerSettings
from tests.conformance.architectures import SIZES
from tests.engine.support import components, tokenizer
from tests.server.real import running
from tests.server.support import MODEL, Site, on_its_own_server, paced

PATH = "/v1/completions"
DESCRIBED = {"architectures": ["LlamaForCausalLM"], **SIZES, "vocab_size": 300}
LONG = {"prompt": "the", "max_tokens": 150, "ignore_eos": True}


def test_what_runs_is_finished_and_nothing_new_is_taken() -> None:
    async def scenario(site: Site) -> None:
        asking = [
            asyncio.create_task(site.post(PATH, **LONG, stream=stream)) for stream in (False, True)
        ]
        await site.until(lambda: len(site.context.open_requests) == 2)
        await site.engine.pause("all")  # so that both still run when others are refused
        os.kill(os.getpid(), signal.SIGTERM)
        await site.until(lambda: site.context.draining)
        refused, ready = await site.post(PATH, **LONG), await site.http.get("/ready")
        assert refused.status_code == ready.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert "retry-after" in refused.headers
        assert (await site.http.get("/health")).status_code == 200
        await site.engine.resume()
        whole, streamed = [await one for one in asking]
        assert whole.json()["choices"][0]["finish_reason"] == "length"
        assert streamed.text.endswith("data: [DONE]\n\n")
        await site.until(lambda: site.server.should_exit)

    on_its_own_server(scenario, breaks=paced)


@pytest.mark.parametrize("stream", [False, True])
def test_what_has_not_begun_when_time_is_over_may_be_asked_for_elsewhere(stream: bool) -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        asking = asyncio.create_task(site.post(PATH, **LONG, stream=stream))
        await site.until(lambda: len(site.context.open_requests) == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await site.until(lambda: site.context.draining)
        with patch.object(site.context.rate, "wait_s", return_value=60):
            answer = await asking
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "draining"
        assert answer.headers["retry-after"] == "1"  # not longer than the server lives
        await site.until(lambda: site.server.should_exit)

    on_its_own_server(scenario, ServerSettings(drain_s=0.05), breaks=paced)


@pytest.mark.parametrize("drain_s", [0.0, 0.05])
def test_what_takes_too_long_is_cut_and_keeps_what_it_has(drain_s: float) -> None:
    async def scenario(site: Site) -> None:
        asking = asyncio.create_task(site.post(PATH, **LONG))
        await site.until_told()
        await site.engine.pause("all")
        site.server.begin_drain(1)
        choice = (await asking).json()["choices"][0]
        assert choice["finish_reason"] == "abort"
        assert choice["text"]
        await site.until(lambda: site.server.should_exit)

    on_its_own_server(scenario, ServerSettings(drain_s=drain_s), breaks=paced)


def test_a_server_listens_at_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")

    async def listen() -> None:
        built = components()
        engine = StreamingEngine.of(built)
        app = create_app(engine, MODEL, tokenizer())
        serving = asyncio.create_task(serve(app, uds=path))
        transport = httpx.AsyncHTTPTransport(uds=path, retries=20)
        async with httpx.AsyncClient(transport=transport, base_url="http://paceline") as client:
            answer = await client.post(PATH, json={"prompt": "the", "max_tokens": 2})
            assert answer.json()["usage"]["completion_tokens"] == 2
            with pytest.raises(ConfigError, match="another server listens"):
                check_socket(path)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        await engine.shutdown()

    asyncio.run(listen())
    assert not os.path.lexists(path)


def test_a_text_that_is_still_read_is_too_late_for_a_server_that_ends_or_for_an_abort() -> None:
    async def scenario(site: Site) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        tokenize = site.engine.tokenized

        async def slowly(one: GenerationRequest, images: Sequence[Any]) -> TokenizedPrompt:
            begun.set()
            await go_on.wait()
            return await tokenize(one, images)

        with patch.object(site.engine, "tokenized", slowly):
            headers = {"X-Request-Id": "mine"}
            asking = asyncio.create_task(site.http.post(PATH, json=LONG, headers=headers))
            await begun.wait()
            told = await site.post("/abort_requests", request_ids=["mine", "other"])
            assert told.json() == {"aborted": ["mine"]}
            go_on.set()
            assert (await asking).json()["error"]["code"] == "aborted"
            begun.clear(), go_on.clear()
            asking = asyncio.create_task(site.post(PATH, **LONG))
            await begun.wait()
            site.context.draining = True
            go_on.set()
            assert (await asking).json()["error"]["code"] == "draining"
        assert not site.context.open_requests.aborted_early
        site.context.draining = False

    on_its_own_server(scenario, breaks=paced)


def test_with_a_second_signal_time_is_up_and_a_third_one_ends_it_at_once() -> None:
    async def scenario(site: Site) -> None:
        asking = asyncio.create_task(site.post(PATH, **LONG))
        await site.until_told()
        await site.engine.pause("all")
        site.server.begin_drain(1)
        await site.until(lambda: site.context.draining)
        assert not site.server.should_exit
        site.server.begin_drain(2)
        site.server.begin_drain(2)  # the owner of the core got the same signal
        choice = (await asking).json()["choices"][0]
        assert choice["finish_reason"] == "abort"
        assert choice["text"]
        await site.until(lambda: site.server.should_exit)
        assert not site.server.force_exit
        site.server.begin_drain(3)
        assert site.server.force_exit
        await site.until(lambda: site.empty)

    on_its_own_server(scenario, breaks=paced)


def test_random_weights_are_served_by_what_describes_them_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DESCRIBED))
    with running(tmp_path, load_format="dummy", aliases=("small", "other")) as server:
        answer = server.http.post(PATH, json={**LONG, "max_tokens": 3}).json()
        assert answer["usage"] == {
            "prompt_tokens": len("the"),
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        metrics = server.http.get("/metrics").text
        assert "\nprocess_resident_memory_bytes " in metrics
        assert "\npaceline_core_process_resident_memory_bytes " in metrics
        assert 'cache_dtype="auto"' in metrics
        (found,) = [one for one in running_servers() if one.pid == server.process.pid]
        assert (found.url, found.model) == (str(server.http.base_url).rstrip("/"), str(tmp_path))
        assert found.name == "small", "the name that metrics have"
        server.process.send_signal(signal.SIGTERM)
        status, said = server.ended()
        assert (status, said) == (0, "False\n"), "the front end needs no torch"
        assert all(one.pid != server.process.pid for one in running_servers())


def with_our_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def begun(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "config.json").write_text(json.dumps(DESCRIBED))
    command = [sys.executable, "-m", "paceline", "serve", str(folder), *more]
    return subprocess.Popen(
        [*command, "--load-format", "dummy"], stderr=subprocess.PIPE, text=True, env=with_our_path()
    )


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = begun(tmp_path, "--port", str(other.getsockname()[1]))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.search(r"cannot listen at 127.0.0.1, port \d+: [^()]+; choose another --port$", said)
    assert "loading" not in said


def test_a_signal_while_a_model_is_loaded_ends_it_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    process = begun(tmp_path, "--port", "0")
    assert process.stderr is not None
    while "loading" not in process.stderr.readline():
        assert process.poll() is None
    while not list(scratch.glob("paceline-*/in")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not list(scratch.iterdir())
