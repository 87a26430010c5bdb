"""The commands of `paceline`. The file of a command is imported when it is run."""

from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer

from paceline import __version__
from paceline.cli.command import command, group

COMMANDS = {
    "demo": "Start a server with the default model and ask it a question.",
    "serve": "Start an OpenAI-compatible server.",
    "serve-dynamo": "Serve a model as a worker of NVIDIA Dynamo.",
    "chat": "Chat with a model in this process, or with --url on a server.",
    "complete": "Complete one prompt, or with --chat answer one message.",
    "run-batch": "Answer a file of requests in the format of the OpenAI Batch API.",
    "bench": "Benchmark a server, or an engine in this process.",
    "pull": "Download a model and print its path.",
    "list": "List the models on this machine.",
    "rm": "Delete a downloaded model from this machine.",
    "ps": "List the servers that run on this machine.",
    "play": "Play a small workload on the real scheduler and draw what it decides.",
    "simulate": "Simulate a server under a trace, a recording or a synthetic load.",
    "compare": "Simulate one load under several policies and settings, and compare them.",
    "capacity": "Find the rate that a server holds within limits, and how many a load needs.",
    "view": "Show a recording in the live page.",
    "replay": "Run a recording again and check that every plan is the same.",
    "calibrate": "Measure the steps of a model on this machine, for simulations.",
    "explain": "Describe what a request waited for, and why.",
    "collect-env": "Print versions, hardware and settings for a bug report.",
}
BENCHMARKS = {
    "serve": "Send requests to a server and measure latency and throughput.",
    "throughput": "Measure the tokens per second of many prompts at once in this process.",
    "latency": "Measure how long one batch takes in this process.",
}


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"paceline {__version__}")
        raise typer.Exit


def paceline(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """An LLM inference engine built around its scheduler."""


def bench() -> None:
    """Benchmark a server, or an engine in this process."""


def found(name: str) -> Any:
    if name == "bench":
        return group(bench, BENCHMARKS, lambda kind: read(kind, f"bench.{kind}"))
    return read(name, f"commands.{name.replace('-', '_')}")


def read(name: str, file: str) -> Any:
    """The command of a file: its `run`, the options that `run` takes, and the end of its help."""
    module: Any = import_module(f"paceline.cli.{file}")
    options = get_type_hints(module.run)["options"]
    return command(name, options, module.run, getattr(module, "closing", str))


def app() -> Any:
    return group(paceline, COMMANDS, found, add_completion=True)


def print_completions(command: Any, variable: str, instruction: str) -> int:
    """Print completions for a shell."""
    from typer.completion import shell_complete

    return shell_complete(command, {}, "paceline", variable, instruction)
