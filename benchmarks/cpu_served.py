"""Servers of one model on one CPU, and clients that all ask at once."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from time import perf_counter, sleep

IN, OUT = 128, 64  # tokens of a prompt and of its answer
START_S = 120.0
MOST = 32  # clients


def ours(model: Path, threads: int, weights: str, port: int) -> list[str]:
    start = "from paceline.cli.main import main; raise SystemExit(main())"
    options = ["--port", port, "--threads", threads, "--weights", weights, "--max-model-len", 1024]
    return [sys.executable, "-c", start, "serve", str(model), *map(str, options)]


def llama_cpp(folder: Path, threads: int, port: int) -> list[str]:
    options = ["-np", MOST, "-c", MOST * (IN + OUT + 8), "-t", threads, "-tb", threads]
    program = folder / "build" / "bin" / "llama-server"
    model = folder / "model-q8_0.gguf"
    return [str(program), "-m", str(model), "--port", str(port), *map(str, options)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A server that answers, until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(process, port)
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    begin = perf_counter()
    while perf_counter() - begin < START_S:
        assert process.poll() is None, f"{process.args} ended"
        try:
            if call(port, "GET", "/health", None)[0] == 200:
                return
        except OSError:
            pass
        sleep(0.2)
    raise TimeoutError(f"{process.args} does not answer")


def call(port: int, method: str, path: str, body: object) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def served_name(port: int) -> str:
    return json.loads(call(port, "GET", "/v1/models", None)[1])["data"][0]["id"]


def ask(port: int, model: str, random: Random) -> int:
    """One request with a prompt of its own; the tokens that came back."""
    body = {
        "model": model,
        "prompt": [random.randrange(100, 40_000) for _ in range(IN)],
        "max_tokens": OUT,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,  # llama.cpp's word for not looking for prefixes
    }
    status, answer = call(port, "POST", "/v1/completions", body)
    assert status == 200, answer
    return json.loads(answer)["usage"]["completion_tokens"]


def output_rate(port: int, clients: int) -> float:
    """Output tokens a second of so many clients, each with one request."""
    asked = partial(ask, port, served_name(port))
    with ThreadPoolExecutor(clients) as pool:
        begin = perf_counter()
        tokens = sum(pool.map(asked, (Random() for _ in range(clients))))
        taken = perf_counter() - begin
    assert tokens == clients * OUT, f"{tokens} tokens for {clients} clients"
    return tokens / taken
