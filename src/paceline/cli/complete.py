"""`paceline complete`: complete one prompt, or answer one message."""

import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.options import EngineOptions


@dataclass(frozen=True, slots=True)
class CompleteOptions:
    """The prompt, and how to sample."""

    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="Text to complete.")]
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the chat template: answer PROMPT as a message.")
    ] = False
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens to generate.")] = 64
    temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")
    ] = 0.0
    seed: Annotated[int | None, typer.Option(help="Seed of the samples.")] = None
    n: Annotated[int, typer.Option("--n", min=1, help="Number of completions.")] = 1
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: CompleteOptions) -> int:
    """Complete one prompt, or with --chat answer one message."""
    from paceline.engine.params import SamplingParams
    from paceline.hub.loading_status import LoadingStatus
    from paceline.wiring.llm import LLM

    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        n=options.n,
    )
    model = options.engine.name()
    with LoadingStatus(model) as bar:
        llm = LLM(model, progress=bar, **options.engine.settings)
    if options.chat:
        message = {"role": "user", "content": options.prompt}
        (output,) = llm.chat([message], params, progress=False)
    else:
        (output,) = llm.generate([options.prompt], params, progress=False)
    if output.error:
        print(f"paceline complete: {output.error}", file=sys.stderr)
        return 1
    for answer in output.outputs:
        print(answer.text)
    return 0
