"""The real server driven by guidellm, a load generator that knows nothing of it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

REQUESTS, TOKENS_IN, TOKENS_OUT = 6, 12, 8
MARKS = 2  # that the chat template puts around a message
PATIENCE_S = 300.0


def benchmark(url: httpx.URL, model: Path, scratch: Path) -> dict[str, Any]:
    """The report on a few streamed chats, which come at a constant rate."""
    report = scratch / "report.json"
    options = {
        "backend": f"kind=openai_http,target={url},request_format=/v1/chat/completions",
        "profile": "kind=constant,rate=10",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=hf_auto,model={model}",
        "data": f"kind=synthetic_text,prompt_tokens={TOKENS_IN},output_tokens={TOKENS_OUT}",
        "output": f"kind=json,path={report}",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console", *flags]
    # One process of clients is enough, and nothing is looked up at a model hub.
    own = {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch)}
    ran = subprocess.run(
        command,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (found,) = json.loads(report.read_text())["benchmarks"]
    return found


def counted(real: httpx.Client, name: str) -> float:
    (value,) = re.findall(rf"^vllm:{name}{{.*}} (.*)$", real.get("/metrics").text, re.MULTILINE)
    return float(value)


def test_guidellm_and_the_server_count_the_same(
    real: httpx.Client, folder: Path, tmp_path: Path
) -> None:
    totals = ("prompt_tokens_total", "generation_tokens_total")
    before = [counted(real, name) for name in totals]
    found = benchmark(real.base_url, folder, tmp_path)
    counts = found["metrics"]["request_totals"]
    assert counts == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    prompt = TOKENS_IN + MARKS
    for request in found["requests"]["successful"]:
        assert (request["prompt_tokens"], request["output_tokens"]) == (prompt, TOKENS_OUT)
        assert request["info"]["timings"]["request_iterations"] > 1, "nothing was streamed"
    after = [counted(real, name) for name in totals]
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert grown == [REQUESTS * prompt, REQUESTS * TOKENS_OUT]
    assert counted(real, "num_requests_running") == 0
