"""A model in a script needs no server, and nothing that only a server needs."""

import subprocess
import sys

import pytest

from paceline.wiring.llm import LLM, UNSUPPORTED, AsyncLLM

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


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_methods_of_others_are_refused_with_what_to_do(kind: type, name: str) -> None:
    with pytest.raises(
        AttributeError, match=f"'{kind.__name__}' object has no attribute '{name}': "
    ):
        getattr(object.__new__(kind), name)
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        _ = object.__new__(kind).xyzzy
