"""Other weights, sleep and wake-up through a server and its processes."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.server.real import Running, running
from tests.wiring.support import real_model, until

BODY = {"prompt": list(range(40)), "max_tokens": 8, "temperature": 0, "logprobs": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [real_model(tmp_path_factory.mktemp("models") / str(seed), seed) for seed in range(2)]


def said(server: Running) -> Any:
    response = server.http.post("/v1/completions", json=BODY)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["logprobs"]


def test_a_server_sleeps_wakes_and_gets_other_weights(folders: list[Path]) -> None:
    """A core that is restarted has the weights of the one that died."""
    with running(folders[0], allow_weight_updates=True) as server:
        post = server.http.post
        before = said(server)
        assert server.http.get("/is_sleeping").json() == {"is_sleeping": False}
        assert post("/sleep?level=1&mode=wait").json() == {"is_sleeping": True}
        refused = post("/v1/completions", json=BODY)
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        assert "asleep (kv_cache, weights); call wake_up" in refused.json()["error"]["message"]
        assert server.http.get("/health").status_code == 200
        assert post("/wake_up?tags=weights").json() == {"is_sleeping": True}
        found = post("/update_weights", json={"path": str(folders[1]), "version": "step 1"})
        assert found.json() == {"weight_version": "step 1"}
        assert post("/wake_up?tags=kv_cache").json() == {"is_sleeping": False}
        due = said(server)
        assert due != before
        for path, body, message in (
            ("/update_weights", {"path": "/nowhere"}, "the weights stay as they are"),
            ("/update_weights", {"mode": "later"}, "mode"),
            ("/sleep?level=4", None, "level"),
            ("/wake_up?tags=all", None, "tags"),
        ):
            wrong = post(path, json=body)
            assert wrong.status_code == 400
            assert message in wrong.text
        core = server.core
        os.kill(core, signal.SIGKILL)
        until(lambda: server.cores not in ([core], []))
        server.until("/health", 200)
        assert server.http.get("/weight_version").json() == {"weight_version": "step 1"}
        assert said(server) == due
        assert post("/update_weights", json={}).status_code == 200
        assert said(server) == before
