"""The command `paceline`: runs one of its commands and returns the exit status."""

import codecs
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from io import TextIOWrapper, UnsupportedOperation
from typing import Any, cast

INTERRUPTED = 130  # the status of a process that Ctrl-C ended
PIPE_CLOSED = 141  # the status of a process whose output pipe was closed
PREFIX = "Value error, "  # pydantic writes it before our messages
COMPLETE = "_PACELINE_COMPLETE"  # how a shell asks for completions
TOO_LARGE = "paceline: out of memory: lower max_num_seqs, max_model_len, or the number of prompts"
SHOWN = "paceline.shown"  # how characters are written that standard output cannot encode
HELP = {"--help", "-h"}
WITHOUT_TYPER = "paceline: the command line needs typer: pip install 'paceline[serve]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Wrong usage raises SystemExit with status 2."""
    accept_any_encoding()
    try:
        if argv is None and sys.argv[1:2] == ["serve"] and not HELP & {*sys.argv}:
            begin_serving()
        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # also while modules are imported
        return INTERRUPTED
    except MemoryError:
        print(TOO_LARGE, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Python flushes stdout again when it exits, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def begin_serving() -> None:
    """Start the process of the engine: it imports torch, while this one reads its options and
    imports the server."""
    with suppress(ModuleNotFoundError):  # which `run` reports
        from paceline.core.errors import ConfigError
        from paceline.core.system.start import FACTORY
        from paceline.engine.transport.child_process import begin_core

        with suppress(ConfigError, OSError):  # which the server reports, if it needs the process
            begin_core(FACTORY)


def accept_any_encoding() -> None:
    """Let input that is not in its encoding reach the command, and write a question mark for
    characters that the encoding of the output lacks, instead of failing with a traceback."""
    codecs.register_error(SHOWN, shown)
    set_errors(sys.stdin, "surrogateescape")
    set_errors(sys.stdout, SHOWN)


def set_errors(stream: Any, name: str) -> None:
    """Name what a stream does about errors of its encoding, unless that was chosen already."""
    if isinstance(cast(object, stream), TextIOWrapper) and stream.errors == "strict":
        with suppress(UnsupportedOperation):  # it has been read from
            stream.reconfigure(errors=name)


def shown(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    warn_of(error.encoding)
    return "?" * (error.end - error.start), error.end


@cache  # once
def warn_of(encoding: str) -> None:
    print(
        f"paceline: standard output is {encoding}, which lacks some characters: they are written "
        "as ?; set LC_ALL=C.UTF-8 or PYTHONIOENCODING=utf-8",
        file=sys.stderr,
    )


def run(arguments: Sequence[str]) -> int:
    try:
        import typer
    except ModuleNotFoundError:
        print(WITHOUT_TYPER, file=sys.stderr)
        return 1
    from paceline.cli.app import app, print_completions

    command = app()
    if instruction := os.environ.get(COMPLETE):
        return print_completions(command, COMPLETE, instruction)
    try:
        with command.make_context("paceline", list(arguments)) as context:
            status: int = command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except typer.TyperException as error:
        complain(error)
        sys.exit(error.exit_code)
    return status


def complain(error: Any) -> None:
    """Print the usage and the error, with the nearest name if there is one."""
    context, name = getattr(error, "ctx", None), "paceline"
    if context is not None:
        print(context.get_usage(), file=sys.stderr)
        name = context.command_path
    close = getattr(error, "possibilities", None)
    hint = f"; did you mean {close[0]}?" if close else ""
    message = error.message if close else error.format_message()
    message = with_value(message, error.__cause__).replace(PREFIX, "")
    print(f"{name}: error: {message}{hint}", file=sys.stderr)


def with_value(message: str, cause: Any) -> str:
    """Name the value where pydantic writes "Input should be ..."."""
    if cause is None or "Input should" not in message:
        return message
    return message.replace("Input should", f"{cause.errors()[0]['input']!r} should", 1)
