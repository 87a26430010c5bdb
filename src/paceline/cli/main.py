"""The command `paceline` and its subcommands."""

import argparse
import os
import sys
from collections.abc import Sequence

from paceline import __version__
from paceline.cli import complete, demo, play, pull, replay, serve

INTERRUPTED = 130  # what shells report for a process that Ctrl-C ended
PIPE_CLOSED = 141  # and for one whose reader went away


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="paceline", description="An LLM inference engine built around its scheduler."
    )
    top.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command, summary in (
        (demo, "serve the default model and ask it a question, to see that it works"),
        (serve, "serve a model over HTTP, in the manner of OpenAI"),
        (complete, "continue a prompt, or answer a question"),
        (pull, "fetch a model into the cache"),
        (play, "play a small workload on the real scheduler, as a picture"),
        (replay, "replay a recorded journal and check that it plans the same"),
    ):
        name = command.__name__.rpartition(".")[2]
        one = commands.add_parser(name, help=summary)
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes again on its way out; let that go nowhere instead of failing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return status


if __name__ == "__main__":
    sys.exit(main())
