"""Options of all benchmarks: the shape of the load, and where results go."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits
from typing import Annotated, Any, ClassVar

import numpy as np
import typer

from paceline.cli.command import WrongOption
from paceline.workloads.call import Call, Shape, Span

SHAPE = "prompts and outputs"
INPUT, OUTPUT = Span(128, 128), Span(64, 64)


def span(given: str | Span) -> Span:
    """Parse a span; a default is one already."""
    try:
        return given if isinstance(given, Span) else Span.parse(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """Lengths of prompts and outputs, in tokens.

    Attributes:
        input_len (N|N-M): Prompt tokens, or a range to draw from.
        output_len (N|N-M): Output tokens, or a range to draw from.
        prefix_len: Prompt tokens shared with other prompts.
        num_prefixes: Number of different shared prefixes.
        vocab_size: Prompts are random token ids below this; at most the vocabulary of the model.
        seed: Seed of lengths, arrivals and prompts.
    """

    panel: ClassVar = SHAPE

    input_len: Annotated[Span, typer.Option(parser=span, show_default="128")] = INPUT
    output_len: Annotated[Span, typer.Option(parser=span, show_default="64")] = OUTPUT
    prefix_len: Annotated[int, typer.Option(min=0)] = 0
    num_prefixes: Annotated[int, typer.Option(min=1)] = 1
    vocab_size: Annotated[int, typer.Option(min=16)] = 8192
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="the same lengths and arrivals in each run, with new prompts"
        ),
    ] = None

    @property
    def shape(self) -> Shape:
        return Shape(self.input_len, self.output_len, self.prefix_len, self.num_prefixes)

    def calls(self, times: Sequence[float]) -> list[Call]:
        return self.shape.calls(times, np.random.default_rng(self.load_seed))

    @property
    def load_seed(self) -> int:
        """The seed of lengths and arrivals, which are the same by default."""
        return self.seed or 0

    def prompt_seed(self) -> int:
        """The seed of what prompts contain: a new one at each call, unless one is given."""
        return randbits(32) if self.seed is None else self.seed

    def record(self, prompt_seed: int) -> dict[str, Any]:
        """The shape as a report has it."""
        return {
            "input_len": [self.input_len.low, self.input_len.high],
            "output_len": [self.output_len.low, self.output_len.high],
            "prefix_len": self.prefix_len,
            "num_prefixes": self.num_prefixes,
            "vocab_size": self.vocab_size,
            "seed": self.load_seed,
            "prompt_seed": prompt_seed,
        }


OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the results as JSON to this file."),
]


def writable(*files: Path | None) -> None:
    """Fail before the measurement, not after it."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise WrongOption(f"{file} cannot be written: there is no folder {file.parent}")
        if file is not None and file.is_dir():
            raise WrongOption(f"{file} is a folder; name a file in it")


def deliver(lines: Sequence[str], record: Any, output: Path | None) -> None:
    """Print the report, and write the record where one is wanted."""
    print("\n".join(lines))
    write_record(record, output)


def write_record(record: Any, output: Path | None) -> None:
    if output is not None:
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
