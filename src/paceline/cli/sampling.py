"""Sampling parameters of `chat` and `complete`: as flags, and as words NAME=VALUE."""

from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter
from typing import Annotated, Any, Self

import typer

from paceline.cli.command import WrongOption
from paceline.cli.setting_flags import FlagGroup, attributes
from paceline.core.errors import RequestError
from paceline.engine.params import SamplingParams

HOW = "sampling"


def listed(text: str) -> list[str]:
    return [text]


def truth(text: str) -> bool:
    return {"true": True, "false": False}[text]


# The parameters, and how a text is read.
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
OF_COMMANDS = ("temperature", "max_tokens")  # each command has its own, with its own default
TYPES = {listed: list[str], truth: bool}
METAVARS = {"top_k": "K", "stop": "TEXT"}
SEVERAL = "Text that ends an answer; may be repeated."  # `SamplingParams` takes a list


class SamplingOptions(FlagGroup):
    """How tokens are chosen, and when an answer ends. `SamplingParams` says what each means."""

    @classmethod
    def flags(cls) -> Iterator[Parameter]:
        meanings = {name: one for name, (_, one) in attributes(SamplingParams).items()}
        meanings["stop"] = SEVERAL
        for name in (one for one in KINDS if one not in OF_COMMANDS):
            first, stop, _ = f"{meanings.get(name, '')} ".partition(". ")
            option = typer.Option(
                f"--{name.replace('_', '-')}",
                help=first + stop.strip(),
                metavar=METAVARS.get(name),
                rich_help_panel=HOW,
            )
            annotation = Annotated[TYPES.get(KINDS[name], KINDS[name]) | None, option]
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        return cls({name: given[name] for name in KINDS if given.get(name) not in (None, [])})

    def params(self, **more: Any) -> dict[str, Any]:
        """Given parameters and `more`, by name; WrongOption if a value is wrong."""
        try:
            return checked(more | self)
        except RequestError as error:
            raise WrongOption(str(error)) from None


def checked(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters; RequestError if one is invalid."""
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
