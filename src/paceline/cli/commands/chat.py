"""`paceline chat`: a conversation in the terminal, which files keep as the body of a chat."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TextIO, cast

import typer

from paceline.cli.backend import ModelBackend, check_decoded, check_url, open_backend
from paceline.cli.options import EngineOptions, KeyOption, ModelArgument, UrlOption
from paceline.cli.sampling import HOW, KINDS, SamplingOptions, changed, checked
from paceline.core.errors import PacelineError, RequestError
from paceline.core.system.files import json_object
from paceline.viewer.play.palette import DIM, Palette

QUOTES = '"""'
HELP = f"""\
/system [TEXT]           set the system message, or remove it; starts a new conversation
/params [NAME=VALUE ...] show sampling parameters, or set them; NAME= removes one
/save FILE               write the conversation and its parameters to a file, as JSON
/load FILE               continue the conversation of a file
/reset                   start a new conversation
/help                    show this list
/quit                    quit; so does Ctrl-D
{QUOTES} begins and ends a message of several lines. Ctrl-C stops an answer."""
TEMPERATURE = 0.7
SAMPLED = (
    f"temperature is {TEMPERATURE}: answers differ between runs; add --temperature 0 to repeat"
)
ROLES = ("system", "user", "assistant")
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Which model answers, and how.

    Attributes:
        system (TEXT): System message.
        load (FILE): Continue a conversation that /save wrote.
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Maximum tokens of an answer.
    """

    argument: ModelArgument = None
    url: UrlOption = None
    api_key: KeyOption = None
    system: str = ""
    load: Path | None = None
    temperature: Annotated[float, typer.Option(min=0, rich_help_panel=HOW)] = TEMPERATURE
    max_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=HOW)] = 512
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        check_url(self.url, self.engine)


def run(options: ChatOptions) -> int:
    """Chat with a model in this process, or with --url on a server.

    Answers are streamed. /help lists the commands of the chat. If standard input is not a
    terminal, each of its lines is one message, and the exit status is 1 if one failed.
    """
    params = options.sampling.params(temperature=options.temperature, max_tokens=options.max_tokens)
    with asyncio.Runner() as runner:
        opening = open_backend(options.url, options.api_key, options.engine, options.argument)
        backend = runner.run(opening)
        chat = Chat(backend, params, runner, Screen.here())
        chat.set_system(options.system)
        if options.load is not None:
            chat.load(str(options.load))
        if options.temperature == TEMPERATURE and not sys.stdin.isatty():
            print(SAMPLED, file=sys.stderr, flush=True)
        try:
            chat.converse()
        finally:
            runner.run(backend.close())
    return int(chat.has_failed and not sys.stdin.isatty())


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

    def complain(self, problem: object) -> None:
        """Report a failure: within the conversation on a terminal, on standard error elsewhere."""
        if self.interactive:
            self.write(f"\nerror: {problem}\n")
        else:
            print(f"paceline chat: {problem}", file=sys.stderr, flush=True)

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
        self, backend: ModelBackend, params: dict[str, Any], runner: asyncio.Runner, screen: Screen
    ) -> None:
        self.backend, self.params = backend, params
        self.has_failed = False  # a message or a command
        self.messages: list[dict[str, str]] = []
        self._system = ""
        self._runner, self._screen = runner, screen

    def converse(self) -> None:
        """Read and answer messages until /quit or the end of the input."""
        self._screen.note(f"{self.backend.name}: /help lists the commands")
        while True:
            try:
                line = self.read_message()
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

    def read_message(self) -> str:
        """One line; or several, from a line that begins with quotes to one that ends with them."""
        line = self._screen.ask("> ").strip()
        if not line.startswith(QUOTES):
            return line
        text = line.removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + self._screen.ask("... ").rstrip("\n")
        return text.rstrip().removesuffix(QUOTES).strip("\n")

    # -- commands -----------------------------------------------------------

    def run_command(self, line: str) -> bool:
        """False if the command quits."""
        name, _, rest = line[1:].partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: self._screen.write(HELP + "\n"),
            "reset": lambda _: self.set_system(self._system),
            "system": self.set_system,
            "params": self.set_params,
            "save": self.save,
            "load": self.load,
        }
        if name in ("quit", "exit"):
            return False
        try:
            if name not in commands:
                raise RequestError(f"no command /{name}; /help lists the commands")
            commands[name](rest.strip())
        except PacelineError as error:
            self.has_failed = True
            self._screen.complain(error)
        return True

    def set_system(self, text: str) -> None:
        """Start a new conversation with this system message, or with none."""
        check_decoded(text, sys.stdin.encoding)
        self._system = text
        self.messages = [{"role": "system", "content": text}] if text else []

    def set_params(self, text: str) -> None:
        """Change the given parameters, and print all."""
        self.params = changed(self.params, text.split())
        self._screen.write(" ".join(f"{name}={value}" for name, value in self.params.items()))
        self._screen.write("\n")

    def save(self, file: str) -> None:
        if not file:
            raise RequestError("/save needs the name of a file")
        save_conversation(Path(file).expanduser(), self.messages, self.params)
        self._screen.note(f"saved {len(self.messages)} messages")

    def load(self, file: str) -> None:
        """Continue with the messages and the parameters of a file."""
        messages, params = load_conversation(Path(file).expanduser())
        self.messages, self.params = messages, {**self.params, **params}
        first = next(iter(messages), {"role": ""})
        self._system = first["content"] if first["role"] == "system" else ""
        self._screen.note(f"loaded {len(messages)} messages")

    # -- answers ------------------------------------------------------------

    def answer(self, line: str) -> None:
        """One turn. Ctrl-C keeps the text so far; an error removes the turn."""
        self.messages.append({"role": "user", "content": line})
        text: list[str] = []
        try:
            check_decoded(line, sys.stdin.encoding)
            self._runner.run(self._stream(text))
        except KeyboardInterrupt:
            self._screen.write("\n")
            self._screen.note("stopped")
        except PacelineError as error:
            self.has_failed = True
            self._screen.complain(error)
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


def save_conversation(
    path: Path, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]
) -> None:
    """RequestError if the file cannot be written."""
    content = json.dumps({"messages": messages, **params}, indent=1, ensure_ascii=False)
    try:
        path.write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None


def load_conversation(path: Path) -> tuple[Messages, dict[str, Any]]:
    """Messages and parameters of a file; PacelineError if it has something else."""
    content = json_object(path)
    messages = content.pop("messages", None)
    if not isinstance(messages, list) or not all(map(is_message, cast("list[Any]", messages))):
        raise RequestError(f"{path} has no conversation: messages must have a role and a content")
    if unknown := [name for name in content if name not in KINDS]:
        raise RequestError(f"{path} has an unknown parameter {unknown[0]!r}")
    return cast("Messages", messages), checked(content)


def is_message(value: Any) -> bool:
    match value:
        case {"role": str(role), "content": str()}:
            return role in ROLES and len(cast("dict[str, Any]", value)) == len(("role", "content"))
        case _:
            return False
