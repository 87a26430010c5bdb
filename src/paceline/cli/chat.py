"""`paceline chat`: a conversation in the terminal."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from time import perf_counter
from typing import Annotated, Any, TextIO

import typer

from paceline.cli.chat_backend import EnginePartner, Manner, Partner
from paceline.cli.command import WrongOption
from paceline.cli.options import EngineOptions, KeyOption, ModelArgument, UrlOption
from paceline.cli.palette import DIM, Palette
from paceline.core.errors import PacelineError

HELP = """\
/system TEXT             what the assistant is told before all else; without TEXT: nothing
/params [NAME=VALUE ...] show or set temperature and max_tokens
/reset                   forget the conversation
/help                    this
/quit                    end; so does Ctrl-D
Ctrl-C stops an answer."""


@dataclass(frozen=True, slots=True)
class Options:
    """With whom to talk, and how."""

    argument: ModelArgument = None
    url: UrlOption = None
    api_key: KeyOption = None
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="What the assistant is told before all else.")
    ] = ""
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 0.7
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 512
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        if self.url and self.engine.settings:
            name = next(iter(self.engine.settings)).replace("_", "-")
            raise WrongOption(f"--{name} is for a model of this process, and --url names a server")


def run(options: Options) -> int:
    """Talk with a model, in this process or with --url on a server.

    Answers are streamed, and the conversation goes on from turn to turn. /help lists what can
    be typed. Without a terminal each line of standard input is one turn.
    """
    with asyncio.Runner() as runner:
        partner = runner.run(met(options))
        manner = Manner(options.temperature, options.max_tokens)
        chat = Chat(partner, manner, runner, Screen.here())
        chat.instruct(options.system)
        try:
            chat.converse()
        finally:
            runner.run(partner.close())
    return 0


async def met(options: Options) -> Partner:
    if options.url:
        from paceline.cli.http_client import ServerPartner

        is_named = options.argument or options.engine.model
        model = options.engine.name(options.argument) if is_named else None
        partner = ServerPartner(options.url, options.api_key, model)
        try:
            await partner.meet()
        except PacelineError:
            await partner.close()
            raise
        return partner
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.llm import AsyncLLM

    model = options.engine.name(options.argument)
    with ProgressBar(model) as bar:
        return EnginePartner(model, AsyncLLM(model, progress=bar, **options.engine.settings))


@dataclass(frozen=True, slots=True)
class Screen:
    """Where the conversation is read and written; `person` tells whether somebody is there."""

    ask: Callable[[str], str]  # shows a prompt, returns a line; EOFError at the end
    out: TextIO
    person: bool

    @staticmethod
    def here() -> "Screen":
        person = sys.stdin.isatty() and sys.stdout.isatty()
        if person:
            with suppress(ImportError):
                import_module("readline")  # gives `input` its line editing and its history
        return Screen(input if person else next_line, sys.stdout, person)

    def write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()

    def aside(self, text: str) -> None:
        """Something that is not part of the conversation; only people want to know."""
        if self.person:
            palette = Palette(colour=not os.environ.get("NO_COLOR"), unicode=True)
            self.write(palette.paint(text, DIM) + "\n")


def next_line(_prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class Chat:
    """`messages` alternate between the two, after what the system says if it says something."""

    def __init__(
        self, partner: Partner, manner: Manner, runner: asyncio.Runner, screen: Screen
    ) -> None:
        self.partner, self.manner = partner, manner
        self.messages: list[dict[str, str]] = []
        self._system = ""
        self._runner, self._screen = runner, screen

    def converse(self) -> None:
        """Until somebody quits or the input ends."""
        self._screen.aside(f"{self.partner.name}: /help lists what can be typed")
        while True:
            try:
                line = self._screen.ask("> ").strip()
            except EOFError:
                break
            except KeyboardInterrupt:
                self._screen.aside("\n/quit or Ctrl-D ends")
                continue
            if line.startswith("/"):
                if not self.obey(line):
                    break
            elif line:
                self.answer(line)

    # -- what is typed ------------------------------------------------------

    def obey(self, line: str) -> bool:
        """Carry a command out; False if it ends the conversation."""
        name, _, rest = line[1:].partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: self._screen.write(HELP + "\n"),
            "reset": lambda _: self.instruct(self._system),
            "system": self.instruct,
            "params": self.tune,
        }
        if name in ("quit", "exit"):
            return False
        if name in commands:
            commands[name](rest.strip())
        else:
            self._screen.write(f"there is no /{name}; /help lists what there is\n")
        return True

    def instruct(self, text: str) -> None:
        """Begin anew, after these instructions."""
        self._system = text
        self.messages = [{"role": "system", "content": text}] if text else []

    def tune(self, text: str) -> None:
        """Change some parameters, and show all."""
        try:
            for part in text.split():
                name, _, value = part.partition("=")
                kinds: dict[str, Any] = {"temperature": float, "max_tokens": int}
                self.manner = replace(self.manner, **{name: kinds[name](value)})
        except (KeyError, ValueError):
            self._screen.write("/params temperature=0.7 max_tokens=512\n")
        manner = self.manner
        self._screen.write(f"temperature={manner.temperature} max_tokens={manner.max_tokens}\n")

    # -- what is answered ---------------------------------------------------

    def answer(self, line: str) -> None:
        """One turn. What was said before a Ctrl-C stays; after an error the turn is undone."""
        self.messages.append({"role": "user", "content": line})
        heard: list[str] = []
        try:
            self._runner.run(self._stream(heard))
        except KeyboardInterrupt:
            self._screen.write("\n")
            self._screen.aside("stopped")
        except PacelineError as error:
            self._screen.write(f"\nerror: {error}\n")
            self.messages.pop()
            return
        self.messages.append({"role": "assistant", "content": "".join(heard)})

    async def _stream(self, heard: list[str]) -> None:
        begun = perf_counter()
        tokens = 0
        async with aclosing(self.partner.answer(self.messages, self.manner)) as pieces:
            async for piece in pieces:
                heard.append(piece.text)
                tokens = piece.tokens or tokens
                self._screen.write(piece.text)
        passed = perf_counter() - begun
        self._screen.write("\n")
        self._screen.aside(f"{tokens} tokens, {tokens / passed:.1f} tokens/s")
