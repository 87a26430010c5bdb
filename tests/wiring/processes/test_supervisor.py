"""What becomes of a server whose front ends cannot start, or end."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import httpx
import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.load import LoadConfig
from paceline.engine.loop.messages import EngineFailed, Question
from paceline.engine.settings import CoreSettings
from paceline.engine.transport.thread import ThreadCore
from paceline.server.listen import bound_sockets, url_of
from paceline.server.scoreboard import shared_memory
from paceline.server.settings import ServerSettings
from paceline.wiring.processes.supervisor import FrontEndSettings, IdleProcesses, Supervisor
from tests.engine.support import components
from tests.server.support import slow
from tests.wiring.support import until

PATH = "/v1/completions"
LIMITS = CoreSettings()
ONE = ServerSettings(api_server_count=1, api_keys=("key",), drain_s=100.0)


@contextmanager
def over_a_thread(model: Path) -> Iterator[tuple[ThreadCore, FrontEndSettings, socket.socket]]:
    """A core without a model, and what a front end needs to know."""
    core, board = ThreadCore(components(slow).engine()), shared_memory(ONE.api_server_count + 1)
    (bound,) = bound_sockets("127.0.0.1", 0)
    files = (bound.fileno(),)
    load = LoadConfig(load_format="dummy")
    try:
        with bound:
            yield core, FrontEndSettings("mine", str(model), load, ONE, {}, {}, files, board), bound
    finally:
        core.close()
        os.close(board)


def supervised(
    core: ThreadCore, settings: FrontEndSettings, limits: CoreSettings = LIMITS
) -> Supervisor:
    idle = IdleProcesses((*settings.sockets, settings.board), 0)
    return Supervisor(core, settings, limits, idle)


def test_processes_that_wait_for_their_settings_can_be_ended() -> None:
    idle = IdleProcesses((), 2)
    taken = idle.take()
    (other,) = idle._waiting
    idle.close()
    assert (other.returncode, taken.returncode) == (-signal.SIGKILL, None)
    taken.kill()
    taken.wait(5.0)
    taken.close()


def test_the_error_of_a_front_end_that_cannot_start_is_raised(model: Path) -> None:
    with over_a_thread(model) as (core, settings, _):
        load = replace(settings.load, chat_template="missing.jinja")
        supervisor = supervised(core, replace(settings, load=load))
        with pytest.raises(ConfigError, match=r"missing\.jinja"):
            supervisor.start()
        supervisor.close()


def test_a_port_that_another_server_took_meanwhile_is_an_error(model: Path) -> None:
    with over_a_thread(model) as (core, settings, bound):
        supervisor = supervised(core, settings)
        port = bound.getsockname()[1]
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(ConfigError, match=f"port {port}: Address already in use"),
        ):
            supervisor.start()
        supervisor.close()


def test_front_ends_that_end_too_often_end_the_server(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with over_a_thread(model) as (core, settings, bound):
        supervisor = supervised(core, settings, CoreSettings(core_restarts=1))
        try:
            supervisor.start()
            with httpx.Client(base_url=url_of(bound), headers={"x-api-key": "key"}) as client:
                answer = client.post(PATH, json={"prompt": "the", "max_tokens": 2})
                assert answer.json()["usage"]["completion_tokens"] == 2

            def kill_twice() -> None:
                for _ in range(2):
                    link = until(lambda: supervisor._links.get(0))
                    os.kill(link.pid, signal.SIGKILL)
                    until(lambda link=link: supervisor._links.get(0) is not link)

            killing = Thread(target=kill_twice)
            killing.start()
            with pytest.raises(EngineFailed, match="ended with code -9"):
                supervisor.run()
            killing.join()
        finally:
            supervisor.close()
    said = [record.getMessage() for record in caplog.records]
    assert any(one.endswith("ended with code -9; another one is started") for one in said)
    assert any(one.startswith("the server exits: ") for one in said)


def test_a_core_that_is_gone_for_good_ends_the_server(model: Path) -> None:
    with over_a_thread(model) as (core, settings, bound):
        supervisor = supervised(core, settings)
        try:
            supervisor.start()
            body = {"prompt": "the", "max_tokens": 200, "ignore_eos": True, "stream": True}
            headers = {"x-api-key": "key"}
            with (
                httpx.Client(base_url=url_of(bound), headers=headers) as client,
                client.stream("POST", PATH, json=body) as response,
            ):
                lines = (line for line in response.iter_lines() if line)
                next(lines)
                core._engine.turn = None  # type: ignore[method-assign, assignment, union-attr]
                with pytest.raises(EngineFailed, match="the engine has died: TypeError"):
                    supervisor.run()
                assert "the engine has died: TypeError" in [*lines][-1]
        finally:
            supervisor.close()


def test_a_second_signal_ends_the_wait_for_open_requests(model: Path) -> None:
    with over_a_thread(model) as (core, settings, bound):
        supervisor = supervised(core, settings)
        try:
            supervisor.start()
            body = {"prompt": "the", "max_tokens": 200, "ignore_eos": True, "stream": True}
            with (
                httpx.Client(base_url=url_of(bound), headers={"x-api-key": "key"}) as client,
                client.stream("POST", PATH, json=body) as response,
            ):
                lines = (line for line in response.iter_lines() if line)
                next(lines)
                core.ask(Question("pause", "all")).result()
                for _ in range(2):
                    supervisor._events.put(signal.SIGTERM)
                supervisor.run()
                assert '"abort"' in "".join(lines)
        finally:
            supervisor.close()


def test_a_front_end_that_is_stuck_is_killed_when_the_server_ends(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paceline.wiring.processes.supervisor.CLOSE_S", 0.2)
    with over_a_thread(model) as (core, settings, _):
        server = replace(settings.server, drain_s=0.0)
        supervisor = supervised(core, replace(settings, server=server))
        try:
            supervisor.start()
            os.kill(supervisor._links[0].pid, signal.SIGSTOP)
            supervisor._events.put(signal.SIGTERM)
            supervisor.run()
        finally:
            supervisor.close()
    assert any("does not end, and is killed" in one.getMessage() for one in caplog.records)
