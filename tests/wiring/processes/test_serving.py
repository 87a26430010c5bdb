"""While a model is loaded: what a signal means, and what a failure leaves."""

import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from paceline import ConfigError
from paceline.engine.api import EngineFailed, SamplingParams
from paceline.engine.loop.messages import Capacity
from paceline.engine.settings import CoreSettings
from paceline.hub.repository_files import silent
from paceline.server.settings import ServerSettings
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model_files import bytes_as_tokens
from paceline.wiring.processes import serving
from paceline.wiring.processes.serving import (
    exit_on_sigterm,
    front_ends,
    loaded,
    log_keys,
    with_page,
)
from tests.text.support import byte_level


def test_the_signal_means_afterwards_what_it_did() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, exit_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("given", "as_json"),
    [({}, False), ({"log_format": "text"}, False), ({"log_format": "json"}, True)],
)
def test_the_log_has_the_format_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], as_json: bool
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(serving.http, "log_to_stderr", lambda **how: seen.append(how))
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ConfigError, match="cannot listen"),
    ):
        serving.serve(port=other.getsockname()[1], **given)
    assert seen == [{"as_json": as_json}]


@pytest.mark.parametrize(
    ("keys", "host", "level", "said"),
    [
        (("a", "b"), "0.0.0.0", "INFO", "clients need an API key; keys set: 2"),
        ((), "127.0.0.1", "INFO", "no API key is set: every client on this machine is accepted"),
        ((), "0.0.0.0", "WARNING", "no API key is set: every client that reaches 0.0.0.0 is"),
    ],
)
def test_the_log_says_whether_a_key_is_needed(
    keys: tuple[str, ...], host: str, level: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        log_keys(ServerSettings(api_keys=keys), host)
    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage().startswith(said)


@pytest.mark.parametrize("setting", ["auto", "none"])
def test_the_log_names_the_sampling_defaults_of_the_model(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    recommended = {"temperature": 0.6, "max_new_tokens": 9}
    vocabulary = replace(bytes_as_tokens(256, ""), recommended=recommended)
    monkeypatch.setattr(serving, "loaded_core", lambda *_: (Loaded(), ""))
    monkeypatch.setattr(serving, "load_tokenizer", lambda *_: Tokenizer(vocabulary))
    monkeypatch.setattr(serving, "load_images", lambda *_: None)
    applied: list[SamplingParams] = []

    async def serve(app: FastAPI, *_: Any) -> None:
        applied.append(app.state.context.engine.rules.params(max_tokens=None))

    monkeypatch.setattr(serving.http, "serve", serve)
    with caplog.at_level("INFO"):
        serving.serve(port=0, generation_config=setting)
    said = (
        "sampling defaults of the model: temperature 0.6, at most max_tokens 9; "
        "--generation-config none switches them off"
    )
    assert (said in [record.getMessage() for record in caplog.records]) == (setting == "auto")
    own = {"temperature": 0.6, "max_tokens": 9} if setting == "auto" else {"max_tokens": None}
    assert applied == [SamplingParams(**own)]


class Broken:
    """A core that never gets ready."""

    closed = False

    def ready(self) -> None:
        raise EngineFailed("no weights")

    def close(self) -> None:
        self.closed = True


def test_a_core_that_fails_to_load_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Broken()
    monkeypatch.setattr(serving, "core_of", lambda path, settings: core)
    with pytest.raises(EngineFailed, match="no weights"):
        loaded("qwen3-0.6b", silent, {"load_format": "dummy"})
    assert core.closed


class Loaded(Broken):
    """A core that is ready at once."""

    def ready(self) -> Capacity:  # type: ignore[override]
        return Capacity(512, 16, 32, 8, 64)


def test_the_log_says_when_loading_begins_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "core_of", lambda path, settings: Loaded())
    with caplog.at_level("INFO"):
        loaded("qwen3-0.6b", silent, {"load_format": "dummy"})
    assert [record.getMessage() for record in caplog.records] == [
        "loading qwen3-0.6b: starting the engine",
        "qwen3-0.6b is loaded; max_model_len is 512",
    ]


def test_a_thread_may_load_a_model_as_well() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), list[object]()

    def load() -> None:
        with exit_on_sigterm():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_log_says_that_a_model_cannot_chat(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(serving, "core_of", lambda path, settings: Loaded())
    monkeypatch.setattr(serving, "download", lambda model, progress: tmp_path)
    loaded("mine", silent, {})
    assert "requests with messages are refused: this model has no chat template" in caplog.text
    caplog.clear()
    loaded("mine", silent, {"chat_template": "chatml"})
    assert not caplog.records


@pytest.mark.parametrize(
    ("cores", "given", "core", "expected"),
    [
        (2, 0, "process", 1),
        (4, 0, "process", 1),
        (16, 0, "process", 4),
        (200, 0, "process", 8),
        (200, 0, "thread", 1),
        (2, 3, "thread", 3),
        (64, 1, "process", 1),
    ],
)
def test_the_number_of_front_ends_depends_on_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, given: int, core: Any, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    chosen = ServerSettings(api_server_count=given)
    assert front_ends(chosen, CoreSettings(core=core)) == expected


@pytest.mark.parametrize(
    ("host", "uds", "given", "expected"),
    [
        ("127.0.0.1", "", {}, True),
        ("localhost", "", {}, True),
        ("0.0.0.0", "", {}, False),
        ("0.0.0.0", "/run/socket", {}, True),
        ("0.0.0.0", "", {"dashboard": True}, True),
        ("::1", "", {"dashboard": False}, False),
    ],
)
def test_the_live_page_is_for_this_machine_by_default(
    host: str, uds: str, given: dict[str, bool], expected: bool
) -> None:
    assert with_page(given, host, uds)["dashboard"] is expected
