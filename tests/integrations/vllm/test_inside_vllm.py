"""The tests of `inside`, which need vLLM 0.13.0, in the environment that has it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INSIDE = Path(__file__).with_name("inside")
PYTHON = os.environ.get("PACELINE_VLLM_PYTHON", "")
OF_VLLM = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.mark.skipif(not PYTHON, reason="PACELINE_VLLM_PYTHON names no python that has vLLM 0.13.0")
def test_our_class_in_vllm() -> None:
    own = ["-q", "-c", str(INSIDE / "pytest.ini"), f"--rootdir={ROOT}", str(INSIDE)]
    environ = {**os.environ, **OF_VLLM, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [PYTHON, "-m", "pytest", *own]
    done = subprocess.run(
        command, check=False, env=environ, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:]
