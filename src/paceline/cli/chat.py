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

from paceline.cli.chat_backend import ChatBackend, ChatParams, EngineBackend
from paceline.cli.command import WrongOption
from paceline.cli.options import EngineOptions, KeyOption, ModelArgument, UrlOption
from paceline.cli.palette import DIM, Palette
from paceline.core.errors import PacelineError

HELP = """\
/system [TEXT]           set the system message, or remove it; starts a new conversation
/params [NAME=VALUE ...] show or set temperature and max_tokens
/reset                   start a new conversation
/help                    show this list
/quit                    quit; so does Ctrl-D
Ctrl-C stops an answer."""
TEMPERATURE = 0.7
SAMPLED = (
    f"temperature is {TEMPERATURE}: answers differ between runs; add --temperature 0 to repeat"
)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Which model answers, and how."""

    argument: ModelArgument = None
    url: UrlOption = None
    api_key: KeyOption = None
    system: Annotated[str, typer.Option(metavar="TEXT", help="System message.")] = ""
    temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")
    ] = TEMPERATURE
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of an answer.")] = 512
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        if self.url and self.engine.settings:
            name = next(iter(self.engine.settings)).replace("_", "-")
            raise WrongOption(f"--{name} sets up a model in this process, but --url names a server")


def run(options: ChatOptions) -> int:
    """Chat with a model in this process, or with --url on a server.

    Answers are streamed. /help lists the commands of the chat. If standard input is not a
    terminal, each of its lines is one message.
    """
    with asyncio.Runner() as runner:
        backend = runner.run(open_backend(options))
        params = ChatParams(options.temperature, options.max_tokens)
        chat = Chat(backend, params, runner, Screen.here())
        chat.set_system(options.system)
        if options.temperature == TEMPERATURE and not sys.stdin.isatty():
            print(SAMPLED, file=sys.stderr, flush=True)
        try:
            chat.converse()
        finally:
            runner.run(backend.close())
    return 0


async def open_backend(options: ChatOptions) -> ChatBackend:
    if options.url:
        from paceline.cli.http_client import ServerBackend

        is_named = options.argument or options.engine.model
        model = options.engine.name(options.argument) if is_named else None
        server = ServerBackend(options.url, options.api_key, model)
        try:
            await server.connect()
        except PacelineError:
            await server.close()
            raise
        return server
    from paceline.hub.loading_status import LoadingStatus
    from paceline.wiring.llm import AsyncLLM

    model = options.engine.name(options.argument)
    with LoadingStatus(model) as bar:
        return EngineBackend(model, AsyncLLM(model, progress=bar, **options.engine.settings))


@dataclass(frozen=True, slots=True)
class Screen:
    """Where the conversation is read and written; `interactive` if both are a terminal."""

    ask: Callable[[str], str]  # shows a prompt and reads a line; EOFError at the end
    out: TextIO
    interactive: bool

    @staticmethod
    def here() -> "Screen":
        interactive = sys.stdin.isatty() and sys.stdout.isatty()
        if interactive:
            with suppress(ImportError):
                import_module("readline")  # adds line editing and history to `input`
        return Screen(input if interactive else next_line, sys.stdout, interactive)

    def write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()

    def note(self, text: str) -> None:
        """Print a remark about the conversation, on a terminal only."""
        if self.interactive:
            palette = Palette(colour=not os.environ.get("NO_COLOR"), unicode=True)
            self.write(palette.paint(text, DIM) + "\n")


def next_line(_prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class Chat:
    """`messages` alternate between user and assistant, after the system message if there is one."""

    def __init__(
        self, backend: ChatBackend, params: ChatParams, runner: asyncio.Runner, screen: Screen
    ) -> None:
        self.backend, self.params = backend, params
        self.messages: list[dict[str, str]] = []
        self._system = ""
        self._runner, self._screen = runner, screen

    def converse(self) -> None:
        """Read and answer messages until /quit or the end of the input."""
        self._screen.note(f"{self.backend.name}: /help lists the commands")
        while True:
            try:
                line = self._screen.ask("> ").strip()
            except EOFError:
                break
            except KeyboardInterrupt:
                self._screen.note("\n/quit or Ctrl-D quits")
                continue
            if line.startswith("/"):
                if not self.run_command(line):
                    break
            elif line:
                self.answer(line)

    # -- commands -----------------------------------------------------------

    def run_command(self, line: str) -> bool:
        """False if the command quits."""
        name, _, rest = line[1:].partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: self._screen.write(HELP + "\n"),
            "reset": lambda _: self.set_system(self._system),
            "system": self.set_system,
            "params": self.set_params,
        }
        if name in ("quit", "exit"):
            return False
        if name in commands:
            commands[name](rest.strip())
        else:
            self._screen.write(f"no command /{name}; /help lists the commands\n")
        return True

    def set_system(self, text: str) -> None:
        """Start a new conversation with this system message, or with none."""
        self._system = text
        self.messages = [{"role": "system", "content": text}] if text else []

    def set_params(self, text: str) -> None:
        """Change the given parameters, and print all."""
        try:
            for part in text.split():
                name, _, value = part.partition("=")
                kinds: dict[str, Any] = {"temperature": float, "max_tokens": int}
                self.params = replace(self.params, **{name: kinds[name](value)})
        except (KeyError, ValueError):
            self._screen.write("usage: /params temperature=0.7 max_tokens=512\n")
        params = self.params
        self._screen.write(f"temperature={params.temperature} max_tokens={params.max_tokens}\n")

    # -- answers ------------------------------------------------------------

    def answer(self, line: str) -> None:
        """One turn. Ctrl-C keeps the text so far; an error removes the turn."""
        self.messages.append({"role": "user", "content": line})
        text: list[str] = []
        try:
            self._runner.run(self._stream(text))
        except KeyboardInterrupt:
            self._screen.write("\n")
            self._screen.note("stopped")
        except PacelineError as error:
            self._screen.write(f"\nerror: {error}\n")
            self.messages.pop()
            return
        self.messages.append({"role": "assistant", "content": "".join(text)})

    async def _stream(self, text: list[str]) -> None:
        begun = perf_counter()
        tokens = 0
        async with aclosing(self.backend.answer(self.messages, self.params)) as pieces:
            async for piece in pieces:
                text.append(piece.text)
                tokens = piece.tokens or tokens
                self._screen.write(piece.text)
        passed = perf_counter() - begun
        self._screen.write("\n")
        self._screen.note(f"{tokens} tokens, {tokens / passed:.1f} tokens/s")
