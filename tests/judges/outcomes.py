"""A plug-in of pytest: writes what each test came to, and whether it sent a request."""

import importlib
import importlib.util
import json
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

# The client of OpenAI sends with httpx or with its successor, by its version.
HTTP_CLIENTS = [
    client
    for name in ("httpx", "httpx2")
    if importlib.util.find_spec(name)
    for client in vars(importlib.import_module(name)).values()
    if isinstance(client, type) and client.__name__ in ("Client", "AsyncClient")
]
LIMIT_S = int(os.environ.get("JUDGE_LIMIT_S", "120"))
SENT = {"requests": 0}
OUTCOMES: dict[str, dict[str, Any]] = {}


def counted(send: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*arguments: Any, **options: Any) -> Any:
        SENT["requests"] += 1
        return send(*arguments, **options)

    return counting


for _client in (*HTTP_CLIENTS, requests.Session):
    _client.send = counted(_client.send)  # type: ignore[method-assign]


@contextmanager
def unlimited() -> Generator[None]:
    """Time that does not count, such as that of a server's start."""
    left = signal.alarm(0)
    yield
    signal.alarm(left)


def too_slow(*_: object) -> None:
    raise TimeoutError(f"the test took more than {LIMIT_S} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    SENT["requests"] = 0
    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(LIMIT_S)
    result = yield
    signal.alarm(0)
    seen = OUTCOMES.setdefault(item.nodeid, {"outcome": "none"})
    seen["requests"] = SENT["requests"]
    Path(os.environ["JUDGE_OUTCOMES"]).write_text(json.dumps(OUTCOMES, indent=1))
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seen = OUTCOMES.setdefault(report.nodeid, {"outcome": "none"})
    tells = report.failed or report.skipped or report.when == "call"
    if tells and seen["outcome"] in ("none", "passed"):
        seen["outcome"] = report.outcome
        text = report.longreprtext or str(report.longrepr or "")
        errors = [line for line in text.splitlines() if line.startswith("E ")]
        seen["error"] = (errors or text.splitlines()[-1:] or [""])[0][:300]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        last = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        OUTCOMES[report.nodeid] = {
            "outcome": "import", "requests": 0, "error": (last or [""])[-1][:300]
        }  # fmt: skip


def pytest_sessionfinish() -> None:
    Path(os.environ["JUDGE_OUTCOMES"]).write_text(json.dumps(OUTCOMES, indent=1))
