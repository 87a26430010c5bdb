"""Two engines behind one server: one is killed under streams, and every text is the same."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

READY_S, STREAMS, TOKENS = 180, 4, 48


@contextmanager
def server(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """`paceline serve` with these options, until it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "paceline", "serve", "smollm2", "--port", str(port), *options]
    with (
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http,
    ):
        try:
            for _ in range(10 * READY_S):
                try:
                    if http.get("/ready").is_success:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            else:
                raise SystemExit("the server is not ready")
            yield process, http
        finally:
            process.terminate()


def text_of(http: httpx.Client, number: int) -> str:
    """The whole text of one stream."""
    body = {"prompt": f"Chapter {number}. It was", "max_tokens": TOKENS, "temperature": 0}
    text = ""
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    return text


def engines_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes of the engines: the children of the server."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    return [int(line) for line in listed.stdout.split()]


def main() -> None:
    options = ("--data-parallel-size", "2", "--api-server-count", "1")
    with server(*options) as (process, http), ThreadPoolExecutor() as threads:
        calm = list(threads.map(lambda number: text_of(http, number), range(STREAMS)))
        started = [threads.submit(text_of, http, number) for number in range(STREAMS)]
        time.sleep(0.3)
        victim = engines_of(process)[0]
        os.kill(victim, signal.SIGKILL)
        disturbed = [future.result() for future in started]
        print(f"killed engine process {victim}; all texts are the same: {disturbed == calm}")
        if disturbed != calm:
            raise SystemExit("a text differs")


if __name__ == "__main__":
    main()
