"""`paceline complete`: continue a prompt, or answer a question, on this machine."""

import argparse
import sys
from importlib import import_module
from typing import Any

from paceline.cli.options import add_model, settings_of
from paceline.core.errors import PacelineError
from paceline.hub.progress import ProgressBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Load a model and continue a prompt; with --chat, answer a message."
    parser.add_argument("prompt", help="the text to continue")
    parser.add_argument("--chat", action="store_true", help="as a message to an assistant")
    parser.add_argument("--max-tokens", type=int, default=64, help="%(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--n", type=int, default=1, help="how many answers")
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    build: Any = import_module("paceline.build.entry")  # torch takes seconds to import
    params: Any = import_module("paceline.engine.params")
    try:
        with ProgressBar(args.model) as bar:
            llm = build.LLM(args.model, progress=bar, **settings_of(args))
        asked = params.SamplingParams(
            max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed, n=args.n
        )
        if args.chat:
            message = {"role": "user", "content": args.prompt}
            (output,) = llm.chat([message], asked, progress=False)
        else:
            (output,) = llm.generate([args.prompt], asked, progress=False)
    except PacelineError as error:
        print(f"paceline complete: {error}", file=sys.stderr)
        return 1
    for answer in output.outputs:
        print(answer.text)
    if output.error:
        print(f"paceline complete: {output.error}", file=sys.stderr)
    return int(bool(output.error))
