"""`paceline serve`: an OpenAI-compatible server for one model."""

import argparse
import sys
from importlib import import_module
from typing import Any

from paceline.cli.options import add_model, settings_of
from paceline.core.errors import PacelineError
from paceline.hub.progress import ProgressBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Load a model and serve it over HTTP, in the manner of OpenAI."
    parser.add_argument("--host", default="127.0.0.1", help="%(default)s")
    parser.add_argument("--port", type=int, default=8000, help="%(default)s")
    parser.add_argument("--api-key", action="append", default=[], help="ask for it; may repeat")
    parser.add_argument("--served-model-name", action="append", default=[], metavar="NAME")
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    build: Any = import_module("paceline.build.entry")  # torch takes seconds to import
    try:
        with ProgressBar(args.model) as bar:
            build.serve(
                args.model,
                host=args.host,
                port=args.port,
                api_keys=tuple(args.api_key),
                aliases=tuple(args.served_model_name),
                progress=bar,
                **settings_of(args),
            )
    except PacelineError as error:
        print(f"paceline serve: {error}", file=sys.stderr)
        return 1
    return 0
