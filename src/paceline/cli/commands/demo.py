"""`paceline demo`: start a server, ask it a question over HTTP, and leave it running."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from paceline.cli.options import model_of
from paceline.core.errors import PacelineError

QUESTION = "Why is the sky blue?"
ANSWER = {"max_tokens": 64, "temperature": 0}
READY_S = 600  # for a slow disk
POLL_S = 0.2
LOG_LINES = 15  # of a server that did not start
SHOWN = ("generation_tokens_total", "prompt_tokens_total", "time_to_first_token_seconds_sum")


class DemoFailed(PacelineError):
    """The server does not start."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The question, the model and the port.

    Attributes:
        question: Question to ask.
        model (NAME): A model, as `paceline serve` takes it.
        port: Port of the server; 0: any free port.
    """

    question: str = QUESTION
    model: str | None = None
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0


def run(options: DemoOptions) -> int:
    """Start a server with the default model and ask it a question.

    The model is downloaded at the first run. The command prints the answer and some metrics, and
    the server runs until Ctrl-C, with its log in a file. With CI=1 in the environment it exits
    after the answer.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.model_files import download

    model = model_of(None, options.model)
    with ProgressBar(model) as bar:
        download(model, bar)
    port = options.port or free_port()
    with serving(model, port) as server:
        ask(server, options.question)
        if os.environ.get("CI"):
            return 0
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends the server as well
        try:
            print("Press Ctrl-C to stop it.", flush=True)
            server.process.wait()
        except KeyboardInterrupt:  # the usual end
            print()
            return 0
    raise DemoFailed(f"the server has stopped; its log ends with\n{server.log_end()}")


@dataclass(frozen=True, slots=True)
class DemoServer:
    """A server that runs, and its log."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    def log_end(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])


@contextmanager
def serving(model: str, port: int) -> Generator[DemoServer]:
    """A server that is ready. It is stopped at the end."""
    words = ["serve", model, "--port", str(port)]
    with NamedTemporaryFile(prefix="paceline-demo-", suffix=".log", delete=False) as log:
        print(f"$ paceline {' '.join(words)} 2>{log.name}", flush=True)
        # In a session of its own, Ctrl-C does not reach it, and it can finish what it does.
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *words], stderr=log, start_new_session=True
        )
    print("Loading the model ...", flush=True)
    server = DemoServer(process, f"http://127.0.0.1:{port}", Path(log.name))
    try:
        wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(server: DemoServer) -> None:
    from paceline.cli.http_client import ServerError, fetched

    give_up = time.monotonic() + READY_S
    while server.process.poll() is None and time.monotonic() < give_up:
        try:
            fetched(server.url, "/ready", None)
            return
        except ServerError:
            time.sleep(POLL_S)
    raise DemoFailed(f"the server did not start; its log ends with\n{server.log_end()}")


def ask(server: DemoServer, question: str) -> None:
    from paceline.cli.http_client import ServerBackend, fetched

    async def answer() -> None:
        backend = ServerBackend(server.url, os.environ.get("PACELINE_API_KEY"), None)
        try:
            await backend.connect()
            message = {"role": "user", "content": question}
            async with aclosing(backend.answer([message], ANSWER)) as pieces:
                async for piece in pieces:
                    print(piece.text, end="", flush=True)
        finally:
            await backend.close()

    print(f"\n> {question}")
    asyncio.run(answer())
    print("\n")
    for line in fetched(server.url, "/metrics", None).splitlines():
        if line.startswith("vllm:") and line.partition("{")[0].endswith(SHOWN):
            print(line)
    print(f"\nServing on {server.url}; its log is {server.log}; try")
    print(f"  curl {server.url}/v1/models")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
