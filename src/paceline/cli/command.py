"""A command: a dataclass of what it takes, and a function of it that returns an exit status."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from paceline.cli.setting_flags import Settings
from paceline.core.errors import ConfigError, PacelineError

FAILED, WRONG = 1, 2  # exit statuses: it did not work; it was asked wrongly
EXTRAS = {"matplotlib": "plot"}  # modules that are not in the extra `serve`
LOOKS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
DEFAULT = re.compile(r"(?<=\[default: )\((.+)\)(?=[;\]])")  # in brackets for no reason of ours

T = TypeVar("T")


class WrongOption(ValueError):
    """Options that are right by themselves and make no sense together."""


def command(
    name: str, options: type[T], run: Callable[[T], int], closing: Callable[[], str] = str
) -> Any:
    """Make a command of it; --help begins with the docstring of `run` and ends with `closing`."""

    class OwnCommand(Command):
        """The command, with what its help ends with."""

        @staticmethod
        def closing() -> str:
            return closing()

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
        except OSError as error:  # a file that cannot be read or written
            if isinstance(error, BrokenPipeError):
                raise
            print(f"{context.command_path}: {error}", file=sys.stderr)
            return FAILED

    own = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    made: Any = called
    made.__signature__ = Signature([own, *parameters(options)])
    alone = bare()
    alone.command(name, cls=OwnCommand, help=run.__doc__, context_settings=LOOKS)(called)
    return typer.main.get_command(alone)


def group(
    top: Callable[..., None], summaries: Mapping[str, str], find: Callable[[str], Any]
) -> Any:
    """A command of commands; `top` has its own options, and `find` makes one of them by name."""
    alone = bare()
    alone.callback(cls=Group, help=top.__doc__, context_settings=LOOKS)(top)
    made: Any = typer.main.get_command(alone)
    made.find = find
    for name, summary in summaries.items():
        made.add_command(Command(name, help=summary))
    return made


def bare() -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def parameters(options: type[Any]) -> Iterator[Parameter]:
    """A parameter for each field; a field that holds options itself stands for all of them."""
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        kind = hints[field.name]
        if is_settings(kind):
            yield from (setting.flag for setting in kind.all())
        elif is_dataclass(kind):
            assert isinstance(kind, type)
            yield from parameters(kind)
        else:
            default = default_of(field)
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def default_of(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default


def filled(options: type[T], given: dict[str, Any]) -> T:
    """The options with the values that were given for their fields."""
    hints = get_type_hints(options, include_extras=True)
    values: dict[str, Any] = {}
    for field in fields(options):  # type: ignore[arg-type]
        kind = hints[field.name]
        if is_settings(kind):
            values[field.name] = kind.among(given)
        elif is_dataclass(kind):
            assert isinstance(kind, type)
            values[field.name] = filled(kind, given)
        else:
            values[field.name] = given[field.name]
    return options(**values)


# -- how help looks ---------------------------------------------------------


class Command(TyperCommand):
    """Options stand below the title of their group, and the closing stays as it was written."""

    @staticmethod
    def closing() -> str:
        return ""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        write_usage(self, ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for one in self.get_params(ctx):
            parameter: Any = one
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            kind = "arguments" if parameter.param_type_name == "argument" else "options"
            groups[parameter.rich_help_panel or kind].append((row[0], DEFAULT.sub(r"\1", row[1])))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if closing := self.closing():
            formatter.write_paragraph()
            formatter.write(f"{closing}\n")


class Group(TyperGroup):
    """Knows the names and summaries of its commands; what one takes is found when it is run."""

    find: Callable[[str], Any]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.find(cmd_name) if cmd_name in self.commands else None

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        write_usage(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("commands"):
            formatter.write_dl([(name, one.help) for name, one in self.commands.items()])


def write_usage(command: Any, context: Any, formatter: Any) -> None:
    pieces = [piece.strip("{}") for piece in command.collect_usage_pieces(context)]
    formatter.write_usage(context.command_path, " ".join(pieces), prefix="usage: ")
