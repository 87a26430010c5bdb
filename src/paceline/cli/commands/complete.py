"""`paceline complete`: complete one prompt, or answer one message."""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.backend import (
    ModelBackend,
    Params,
    Prompt,
    check_decoded,
    check_url,
    open_backend,
)
from paceline.cli.options import EngineOptions, KeyOption, UrlOption
from paceline.cli.sampling import HOW, SamplingOptions
from paceline.core.errors import PacelineError

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class CompleteOptions:
    """The prompt, what completes it, and how to sample.

    Attributes:
        prompt (PROMPT): Text to complete; - reads standard input.
        chat: Apply the chat template: answer PROMPT as a message.
        max_tokens: Maximum tokens to generate.
        temperature: Sampling temperature; 0 is greedy.
        n: Number of completions; several are printed when all have ended.
    """

    prompt: Annotated[str, typer.Argument()]
    chat: bool = False
    url: UrlOption = None
    api_key: KeyOption = None
    max_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=HOW)] = 64
    temperature: Annotated[float, typer.Option(min=0, rich_help_panel=HOW)] = 0.0
    n: Annotated[int, typer.Option("--n", min=1, rich_help_panel=HOW)] = 1
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        check_url(self.url, self.engine)


def run(options: CompleteOptions) -> int:
    """Complete one prompt, or with --chat answer one message.

    The text is printed as it is generated, by a model in this process or with --url by a server.
    """
    params = options.sampling.params(
        max_tokens=options.max_tokens, temperature=options.temperature, n=options.n
    )
    text, encoding = options.prompt, sys.getfilesystemencoding()
    if text == STANDARD_INPUT:
        text, encoding = sys.stdin.read(), sys.stdin.encoding
    check_decoded(text, encoding)
    prompt: Prompt = [{"role": "user", "content": text}] if options.chat else text

    async def answered() -> None:
        backend = await open_backend(options.url, options.api_key, options.engine)
        try:
            await print_answer(backend, prompt, params)
        finally:
            await backend.close()

    asyncio.run(answered())
    return 0


async def print_answer(backend: ModelBackend, prompt: Prompt, params: Params) -> None:
    """Print one completion as it arrives, or several at the end. The last line is complete even
    if the answer is not."""
    texts = [""] * params["n"]
    is_single = len(texts) == 1
    try:
        async with aclosing(backend.answer(prompt, params)) as pieces:
            async for piece in pieces:
                texts[piece.choice] += piece.text
                if is_single:
                    print(piece.text, end="", flush=True)
    except (PacelineError, asyncio.CancelledError):
        if is_single and texts[0]:
            print()
        raise
    print("" if is_single else "\n".join(texts))
