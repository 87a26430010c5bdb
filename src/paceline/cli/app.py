"""All commands of `paceline`, each in a file of its own that is read when the command is run."""

from importlib import import_module
from typing import Annotated, Any

import typer

from paceline import __version__
from paceline.cli.command import command, group

COMMANDS = {
    "demo": "Serve the default model and ask it a question, to see that it works.",
    "serve": "Load a model and serve it over HTTP, in the manner of OpenAI.",
    "chat": "Talk with a model, in this process or with --url on a server.",
    "complete": "Load a model and continue a prompt; with --chat, answer a message.",
    "run-batch": "Answer a file of requests, as OpenAI's batches do.",
    "bench": "Measure a server, or an engine in this process.",
    "pull": "Fetch a model, unless it is there, check it, and print where it is.",
    "play": "Play a small workload on the real scheduler and draw what it decides.",
    "replay": "Make the calls of a recording again and check that it plans the same.",
    "explain": "Describe what a request waited for, and why.",
    "collect-env": "Print versions, the machine and the defaults, for a report of a problem.",
}
FILES = {"play": "play.command"}  # commands with a folder of their own
BENCHMARKS = {
    "serve": "Send requests to a server and measure how they fare.",
    "throughput": "Run many prompts at once in this process and count tokens per second.",
    "latency": "Run one batch several times in this process and measure each.",
}


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"paceline {__version__}")
        raise typer.Exit


def paceline(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it and end.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """An LLM inference engine built around its scheduler."""


def bench() -> None:
    """Measure a server, or an engine in this process."""


def found(name: str) -> Any:
    if name == "bench":
        return group(bench, BENCHMARKS, lambda kind: read(kind, f"bench.{kind}"))
    return read(name, FILES.get(name, name.replace("-", "_")))


def read(name: str, file: str) -> Any:
    """The command of a file: its `Options`, its `run`, and what closes its help."""
    module: Any = import_module(f"paceline.cli.{file}")
    return command(name, module.Options, module.run, getattr(module, "closing", str))


def app() -> Any:
    return group(paceline, COMMANDS, found)
