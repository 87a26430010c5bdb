"""A model in a script needs no server, and nothing that only a server needs."""

import subprocess
import sys

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
