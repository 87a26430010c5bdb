"""Commands: a dataclass of options, and a function that takes it and returns an exit status."""

import errno
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo, ParameterInfo

from paceline.cli.setting_flags import FlagGroup, attributes
from paceline.core.errors import ConfigError, PacelineError

FAILED, WRONG = 1, 2  # exit statuses: the command failed; it was used wrongly
EXTRAS = {"dynamo": "dynamo", "matplotlib": "plot"}  # modules that are not in the extra `serve`
LOOKS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# What typer writes into help, and what people read more easily.
REWRITTEN = (
    (re.compile(r"<(?:int|int range)>"), "N"),
    (re.compile(r"<(?:float|float range)>"), "X"),
    (re.compile(r"<str>"), "TEXT"),
    (re.compile(r"<path>"), "FILE"),
    (re.compile(r"<([\w.-]+(?:\|[\w.-]+)+)>"), r"\1"),  # choices
    (re.compile(r"(?<=\[default: )\((.+?)\)(?=[;\]])"), r"\1"),
    (re.compile(r"(-?[\d.]+)<=x<=(-?[\d.]+)(?=\])"), r"\1 to \2"),
    (re.compile(r"x>=(-?[\d.]+)(?=\])"), r"at least \1"),
)

T = TypeVar("T")


class WrongOption(ValueError):
    """Options that exclude each other, or a value that only the command can check."""


def command(
    name: str, options: type[T], run: Callable[[T], int], closing: Callable[[], str] = str
) -> Any:
    """Make a command; --help begins with the docstring of `run` and ends with `closing`."""

    def called(context: typer.Context, **given: Any) -> int:
        try:
            return run(filled(options, given))
        except WrongOption as error:
            raise typer.BadParameter(str(error), ctx=context) from None
        except PacelineError as error:
            print(f"{context.command_path}: {error}", file=sys.stderr)
            return WRONG if isinstance(error, ConfigError) else FAILED
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("paceline"):
                raise
            top = error.name.partition(".")[0]
            wanted = f"this needs {top}: pip install 'paceline[{EXTRAS.get(top, 'serve')}]'"
            print(f"{context.command_path}: {wanted}", file=sys.stderr)
            return FAILED
        except OSError as error:  # for example a file that cannot be written
            if isinstance(error, BrokenPipeError):
                raise
            if error.errno == errno.ENOMEM:
                raise MemoryError from error
            print(f"{context.command_path}: {os_problem(error)}", file=sys.stderr)
            return FAILED

    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    function: Any = called
    function.__signature__ = Signature([context, *parameters(options)])
    alone = bare()
    alone.command(name, cls=Command, help=run.__doc__, context_settings=LOOKS)(called)
    made: Any = typer.main.get_command(alone)
    made.closing = closing
    return made


def os_problem(error: OSError) -> str:
    """The file and what is wrong with it, without the number of the error."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def group(
    top: Callable[..., None],
    summaries: Mapping[str, str],
    find: Callable[[str], Any],
    add_completion: bool = False,
) -> Any:
    """A group of commands; `top` has its options, and `find` makes a command by its name."""
    alone = bare(add_completion)
    alone.callback(cls=Group, help=top.__doc__, context_settings=LOOKS)(top)
    made: Any = typer.main.get_command(alone)
    made.find = find
    for name, summary in summaries.items():
        made.add_command(Command(name, help=summary))
    return made


def bare(add_completion: bool = False) -> typer.Typer:
    return typer.Typer(
        add_completion=add_completion, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def parameters(options: type[Any]) -> Iterator[Parameter]:
    """A parameter for each field; a field that is a dataclass of options adds all of them.

    The docstring has metavars and meanings, and `panel` is the title of options that name none.
    """
    hints, entries = get_type_hints(options, include_extras=True), attributes(options)
    panel: str | None = getattr(options, "panel", None)
    for field in fields(options):
        kind = hints[field.name]
        if is_flag_group(kind):
            yield from kind.flags()
        elif is_dataclass(kind):
            assert isinstance(kind, type)
            yield from parameters(kind)
        else:
            default = default_of(field)
            metavar, meaning = entries.get(field.name, ("", ""))
            plain, option = typed_option(kind)
            option.metavar, option.help = metavar or option.metavar, meaning or option.help
            if isinstance(option, OptionInfo):
                option.rich_help_panel = option.rich_help_panel or panel
                if plain is bool and default is False and option.default is ...:
                    option.param_decls = (f"--{field.name.replace('_', '-')}",)  # without --no-
            kind = Annotated[plain, option]
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def typed_option(kind: Any) -> tuple[Any, ParameterInfo]:
    """The type of a field, and an option or an argument that may be changed."""
    if get_origin(kind) is not Annotated:
        return kind, typer.Option()
    plain, declared = get_args(kind)
    return plain, copy(declared)


def is_flag_group(kind: Any) -> TypeGuard[type[FlagGroup]]:
    return isinstance(kind, type) and issubclass(kind, FlagGroup)


def default_of(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default


def filled(options: type[T], given: dict[str, Any]) -> T:
    """The dataclass, filled with the values from the command line."""
    hints = get_type_hints(options, include_extras=True)
    values: dict[str, Any] = {}
    for field in fields(options):  # type: ignore[arg-type]
        kind = hints[field.name]
        if is_flag_group(kind):
            values[field.name] = kind.among(given)
        elif is_dataclass(kind):
            assert isinstance(kind, type)
            values[field.name] = filled(kind, given)
        else:
            values[field.name] = given[field.name]
    return options(**values)


# -- how help looks ---------------------------------------------------------


class Command(TyperCommand):
    """Lists options below the title of their group, and leaves the closing as it is written."""

    closing: Callable[[], str] = str  # the end of the help

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        write_usage(self, ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for one in self.get_params(ctx):
            parameter: Any = one
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            name, text = plain(row[0]), plain(row[1])
            kind = "options"
            if parameter.param_type_name == "argument":
                kind, name = "arguments", name.partition(" ")[0]
            groups[parameter.rich_help_panel or kind].append((name, text))
        for title, rows in groups.items():
            with formatter.section(capitalised(title)):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if closing := self.closing():
            formatter.write_paragraph()
            formatter.write(f"{closing}\n")


class Group(TyperGroup):
    """Knows the names and summaries of its commands, and imports a command when it is run."""

    find: Callable[[str], Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command, print the help: it lists the commands."""
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help(), file=sys.stderr)
            ctx.exit(WRONG)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.find(cmd_name) if cmd_name in self.commands else None

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        write_usage(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.help) for name, one in self.commands.items()])


def plain(text: str) -> str:
    for pattern, replacement in REWRITTEN:
        text = pattern.sub(replacement, text)
    return text


def capitalised(title: str) -> str:
    return title[:1].upper() + title[1:]


def write_usage(command: Any, context: Any, formatter: Any) -> None:
    pieces = [piece.strip("{}") for piece in command.collect_usage_pieces(context)]
    formatter.write_usage(context.command_path, " ".join(pieces), prefix="Usage: ")
