"""`paceline demo`: start a server, ask it a question over HTTP, and leave it running."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated
from urllib.error import URLError
from urllib.request import Request, urlopen

import typer

QUESTION = "Why is the sky blue?"
READY_S = 600  # for a download and a slow disk
SHOWN = ("generation_tokens_total", "prompt_tokens_total", "time_to_first_token_seconds_sum")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The question and the port."""

    question: Annotated[str, typer.Option(help="Question to ask.")] = QUESTION
    port: Annotated[
        int, typer.Option(help="Port of the server; 0: any free port.", min=0, max=65535)
    ] = 0


def run(options: DemoOptions) -> int:
    """Start a server with the default model and ask it a question.

    The model is downloaded at the first run. The command prints the answer and some metrics, and
    the server runs until Ctrl-C. With CI=1 in the environment it exits after the answer.
    """
    port = options.port or free_port()
    command = [sys.executable, "-m", "paceline", "serve", "--port", str(port)]
    print(f"$ paceline serve --port {port}", flush=True)
    with subprocess.Popen(command) as server:
        try:
            return converse(server, f"http://127.0.0.1:{port}", options.question)
        finally:
            server.terminate()


def converse(server: "subprocess.Popen[bytes]", address: str, question: str) -> int:
    if not ready(server, address):
        print("paceline demo: the server did not start", file=sys.stderr)
        return 1
    print(f"\n> {question}")
    for piece in answer(address, question):
        print(piece, end="", flush=True)
    print("\n")
    for line in text_of(f"{address}/metrics").splitlines():
        if line.startswith("vllm:") and line.partition("{")[0].endswith(SHOWN):
            print(line)
    print(f"\nServing on {address}; try")
    print(f"  curl {address}/v1/models")
    if not os.environ.get("CI"):
        print("Press Ctrl-C to stop it.", flush=True)
        server.wait()
    return 0


def ready(server: "subprocess.Popen[bytes]", address: str) -> bool:
    """Wait until the server takes requests; False if it exits or takes too long."""
    give_up = time.monotonic() + READY_S
    while server.poll() is None and time.monotonic() < give_up:
        with suppress(URLError, OSError):
            text_of(f"{address}/ready")
            return True
        time.sleep(0.2)
    return False


def answer(address: str, question: str) -> Iterator[str]:
    """Stream the answer."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": True,
    }
    request = Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        for line in response:
            event = line.decode().strip().removeprefix("data: ")
            if event and event != "[DONE]":
                yield json.loads(event)["choices"][0]["delta"].get("content", "")


def text_of(address: str) -> str:
    with urlopen(address) as response:
        text: str = response.read().decode()
    return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
