"""`paceline pull`: fetch a model into the cache."""

import argparse
import sys

from paceline.core.errors import PacelineError
from paceline.hub.catalogue import DEFAULT
from paceline.hub.progress import ProgressBar
from paceline.hub.pull import pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Fetch a model, unless it is there, check it, and print where it is."
    parser.add_argument(
        "model", nargs="?", default=DEFAULT, help="a name, a path, or owner/name (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    try:
        with ProgressBar(args.model) as bar:
            path = pull(args.model, progress=bar)
    except PacelineError as error:
        print(f"paceline pull: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0
