"""Dataclasses as commands: options, groups of options, help, and how a command ends."""

import errno
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer

from paceline.cli.command import WrongOption, command, group
from paceline.cli.setting_flags import Settings
from paceline.core.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class Inner:
    depth_of_water: Annotated[int, typer.Option(min=1, rich_help_panel="water")] = 3


@dataclass(frozen=True, slots=True)
class Options:
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who.")]
    loud: Annotated[bool, typer.Option("--loud")] = False
    often: Annotated[list[str], typer.Option()] = field(default_factory=list[str])
    inner: Inner = field(default_factory=Inner)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if self.loud and self.name == "mouse":
            raise WrongOption("a mouse is not loud")


@pytest.fixture
def ran() -> tuple[list[Options], Any]:
    """What a command was run with, and the command."""
    seen: list[Options] = []

    def run(options: Options) -> int:
        """Say something.

        At length.
        """
        seen.append(options)
        if options.name == "config":
            raise ConfigError("wrong setting")
        if options.name == "request":
            raise RequestError("wrong request")
        if options.name == "memory":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return 7

    def zoo() -> None:
        """Animals."""

    summaries = {"say": "Say something."}
    made = group(zoo, summaries, lambda name: command(name, Options, run, lambda: "  as\n    w"))

    def invoke(*words: str) -> int:
        with made.make_context("zoo", list(words)) as context:
            return made.invoke(context)

    return seen, invoke


def test_fields_become_options(ran: tuple[list[Options], Any]) -> None:
    seen, invoke = ran
    assert invoke("say", "cat") == 7
    words = ["--loud", "--often", "a", "--often", "b", "--depth-of-water", "4"]
    assert invoke("say", "cow", *words, "--block-size", "32", "--no-enable-prefix-caching") == 7
    assert seen == [
        Options("cat"),
        Options(
            "cow",
            True,
            ["a", "b"],
            Inner(4),
            Settings(block_size=32, enable_prefix_caching=False),
        ),
    ]


def test_errors_become_statuses(
    ran: tuple[list[Options], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, invoke = ran
    assert invoke("say", "config") == 2
    assert invoke("say", "request") == 1
    assert capsys.readouterr().err == "zoo say: wrong setting\nzoo say: wrong request\n"


def test_memory_that_the_system_refuses_is_a_lack_of_memory(
    ran: tuple[list[Options], Any],
) -> None:
    _, invoke = ran
    with pytest.raises(MemoryError):
        invoke("say", "memory")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["mouse", "--loud"], "a mouse is not loud"),
        (["cat", "--depth-of-water", "0"], "'--depth-of-water'"),
        (["cat", "--block-size", "many"], "'--block-size'"),
        (["cat", "--free-order", "last"], "unsealed_first"),
        ([], "NAME"),
    ],
)
def test_wrong_values_are_usage_errors(
    words: list[str], complaint: str, ran: tuple[list[Options], Any]
) -> None:
    seen, invoke = ran
    with pytest.raises(typer.TyperException) as caught:
        invoke("say", *words)
    assert caught.value.exit_code == 2
    assert complaint in caught.value.format_message()
    assert seen == []


def test_help_has_groups_and_closes_as_written(
    ran: tuple[list[Options], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, invoke = ran
    with pytest.raises(typer.Exit):
        invoke("say", "--help")
    said = capsys.readouterr().out
    assert said.startswith("Usage: zoo say [OPTIONS] NAME")
    titles = [line for line in said.splitlines() if line.endswith(":")]
    assert titles[:3] == ["Arguments:", "Options:", "Water:"]
    assert said.rstrip("\n").endswith("\n  as\n    w")
    with pytest.raises(typer.Exit):
        invoke("--help")
    assert "  say  Say something.\n" in capsys.readouterr().out
