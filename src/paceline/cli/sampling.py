"""Sampling parameters of `chat` and `complete`: as flags, and as words NAME=VALUE."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from paceline.cli.command import WrongOption
from paceline.core.errors import RequestError

HOW = "sampling"


def listed(text: str) -> list[str]:
    return [text]


def truth(text: str) -> bool:
    return {"true": True, "false": False}[text]


KINDS: dict[str, Any] = {
    "temperature": float,
    "max_tokens": int,
    "min_tokens": int,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "seed": int,
    "stop": listed,
    "ignore_eos": truth,
}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen, and when an answer ends; what is not given keeps its default."""

    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the likeliest tokens that together have this probability.",
            rich_help_panel=HOW,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(help="Sample from the K likeliest tokens.", metavar="K", rich_help_panel=HOW),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from tokens with at least this share of the highest probability.",
            rich_help_panel=HOW,
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Penalty of tokens that occur in the answer.", rich_help_panel=HOW),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            help="The same, once for each time that they occur.",
            rich_help_panel=HOW,
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Divides the logits of tokens that occur in prompt or answer.",
            rich_help_panel=HOW,
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the samples.", rich_help_panel=HOW)] = (
        None
    )
    min_tokens: Annotated[
        int | None,
        typer.Option(help="Minimum tokens of an answer.", rich_help_panel=HOW),
    ] = None
    stop: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="Text that ends an answer; may be repeated.",
            rich_help_panel=HOW,
        ),
    ] = field(default_factory=list[str])
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos", help="Continue after the model's end token.", rich_help_panel=HOW
        ),
    ] = None

    def params(self, **more: Any) -> dict[str, Any]:
        """What was given, and more, by name; WrongOption if a value is wrong."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        try:
            return checked(more | given)
        except RequestError as error:
            raise WrongOption(str(error)) from None


def checked(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters; RequestError if one has no sense."""
    from paceline.engine.params import SamplingParams

    SamplingParams(**params)
    return dict(params)


def changed(params: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Parameters with those that words such as `top_p=0.9` change; `seed=` removes one."""
    found = dict(params)
    for word in words:
        name, _, value = word.partition("=")
        if name not in KINDS:
            raise RequestError(f"no parameter {name!r}; there are {', '.join(KINDS)}")
        if not value:
            found.pop(name, None)
            continue
        try:
            found[name] = KINDS[name](value)
        except (ValueError, KeyError):
            raise RequestError(f"{value!r} is not a value of {name}") from None
    return checked(found)
