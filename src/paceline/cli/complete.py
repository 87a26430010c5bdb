"""`paceline complete`: continue a prompt, or answer a question, on this machine."""

import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Options:
    """What to continue, and how."""

    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue.")]
    chat: Annotated[bool, typer.Option("--chat", help="As a message to an assistant.")] = False
    max_tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 64
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.0
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same samples.")] = None
    n: Annotated[int, typer.Option("--n", help="How many answers.")] = 1
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: Options) -> int:
    """Load a model and continue a prompt; with --chat, answer a message."""
    from paceline.engine.params import SamplingParams
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.llm import LLM

    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        n=options.n,
    )
    model = options.engine.name()
    with ProgressBar(model) as bar:
        llm = LLM(model, progress=bar, **options.engine.settings)
    if options.chat:
        message = {"role": "user", "content": options.prompt}
        (output,) = llm.chat([message], params, progress=False)
    else:
        (output,) = llm.generate([options.prompt], params, progress=False)
    for answer in output.outputs:
        print(answer.text)
    if output.error:
        print(f"paceline complete: {output.error}", file=sys.stderr)
    return int(bool(output.error))
