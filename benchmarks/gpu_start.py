"""How long a server takes from nothing to its first token, and where the time goes.

    python -m benchmarks.gpu_start qwen3-0.6b qwen3-14b
    python -m benchmarks.gpu_start qwen3-0.6b --times 3 -- --max-num-seqs 64

Models are shapes with random weights. The first start of each has empty caches of kernels, the
others have those of the first; with `--caches`, a folder that exists is used as it is. Each line of
JSON is one start: seconds until the server answers, and of the first token; of `phases`, `python`
is what the engine's process did before it was asked to load a model. What is after `--` goes to
`paceline serve`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.servers import started

METRIC = "paceline:start_seconds"
BODY = {"prompt": [5, 6, 7, 8], "max_tokens": 1, "temperature": 0.0}


def answer(port: int, path: str, body: dict[str, Any] | None = None) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise SystemExit(f"{path} failed: {text}")
        return text
    finally:
        connection.close()


def phases(port: int) -> dict[str, float]:
    """Seconds of each phase, in their order."""
    lines = [one for one in answer(port, "/metrics").splitlines() if one.startswith(METRIC)]
    found = {one.split('phase="')[1].split('"')[0]: float(one.split()[-1]) for one in lines}
    return {name: round(seconds, 2) for name, seconds in found.items()}


def measured(model: str, given: Sequence[str], caches: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "paceline", "serve", model, "--load-format", "dummy", *given]
    begin = perf_counter()
    with started(command, **caches) as (_, port):
        ready_s = perf_counter() - begin
        begin = perf_counter()
        answer(port, "/v1/completions", {"model": model, **BODY})
        first_token_s = perf_counter() - begin
        return {
            "ready_s": round(ready_s, 2),
            "first_token_s": round(first_token_s, 3),
            "phases": phases(port),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure starts of a server; prints JSON.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--times", type=int, default=2, help="starts of each model")
    parser.add_argument("--caches", default="", help="folder of caches, which stay there")
    options, given = parser.parse_known_args()
    given = [one for one in given if one != "--"]
    for model in options.models:
        with TemporaryDirectory() as temporary:
            folder = Path(options.caches or temporary)
            places = {"TRITON_CACHE_DIR": f"{folder}/triton", "PACELINE_CACHE": f"{folder}/own"}
            begun = bool(options.caches) and folder.exists()
            for number in range(options.times):
                caches = "warm" if begun or number else "cold"
                found = measured(model, given, places)
                print(json.dumps({"model": model, "caches": caches, **found}), flush=True)


if __name__ == "__main__":
    main()
