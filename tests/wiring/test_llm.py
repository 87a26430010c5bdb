"""A model in a script needs no server, and nothing that only a server needs."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from paceline import LLM
from tests.runner.support import TINY

REFUSING = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fastapi", "uvicorn", "pydantic", "prometheus_client", "zmq"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
from paceline import LLM, AsyncLLM, SamplingParams
"""


def test_a_script_imports_a_model_without_what_a_server_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSING], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, StringIO])
def test_a_terminal_shows_what_the_start_waits_for(
    stream: type[StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stream())
    LLM(str(tmp_path), load_format="dummy", device="cpu", kv_cache_gib=0.001).close()
    assert isinstance(sys.stderr, stream)
    assert ("loading weights" in sys.stderr.getvalue()) == (stream is Terminal)
