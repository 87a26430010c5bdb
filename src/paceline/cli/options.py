"""Options of several commands, and `--config FILE`, which has values for options."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from json import dumps
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from paceline.cli.command import WrongOption
from paceline.cli.setting_flags import Settings
from paceline.core.errors import nearest
from paceline.hub.catalogue import DEFAULT, MODELS, REPOSITORIES

KINDS = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}
REPOSITORY = (
    "a repository on Hugging Face: owner/name[@revision], for GGUF owner/name:FILE or "
    "owner/name:Q4_K_M."
)
WHICH = (
    f"{DEFAULT} or another name that `paceline pull --help` lists, a .gguf file, a model folder, "
    f"or {REPOSITORY}"
)
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="URL of a server, for example http://127.0.0.1:8000."
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="PACELINE_API_KEY", metavar="KEY", help="API key of the server."
    ),
]


def use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the values of the file for options that neither a flag nor the environment sets."""
    if path is not None and not context.resilient_parsing:
        known = options_by_key(context.command)
        context.default_map = {}
        for key, value in content_of(path).items():
            option = known.get(key.replace("-", "_"))
            if option is None:
                raise typer.BadParameter(unknown(path, key, known), ctx=context)
            if option.name in context.default_map:
                raise typer.BadParameter(f"{path} sets {option.opts[0]} twice", ctx=context)
            context.default_map[option.name] = checked(context, option, f"{path}: {key}", value)
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML or TOML file with values for these options, by name; flags and environment "
        "variables replace them.",
        is_eager=True,
        callback=use_config,
    ),
]


def options_by_key(command: Any) -> dict[str, Any]:
    """The options of a command by their flags and their names, with underscores.

    A file cannot name another file.
    """
    found: dict[str, Any] = {}
    for option in command.params:
        if option.param_type_name == "option" and not option.is_eager:
            names = [name.removeprefix("--") for name in option.opts if name.startswith("--")]
            found |= {name.replace("-", "_"): option for name in (*names, option.name)}
    return found


def content_of(path: Path) -> Mapping[str, Any]:
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise typer.BadParameter(f"{path} must end in {', '.join(KINDS)}")
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = tomllib.loads(text) if kind == "TOML" else parsed_yaml(text)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not {kind}: {error}") from None
    if found is None:  # an empty file
        return {}
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} must have a line NAME: VALUE for each option")
    return {str(key): value for key, value in cast("dict[Any, Any]", found).items()}


def parsed_yaml(text: str) -> Any:
    yaml: Any = import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            raise ValueError(str(error)) from None
        position = f"line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{position}: {error.problem}") from None


def unknown(path: Path, key: str, known: Mapping[str, Any]) -> str:
    return f"{path} has an unknown key {key!r}{nearest(key.replace('-', '_'), known)}"


def checked(context: typer.Context, option: Any, where: str, value: Any) -> Any:
    """The value as the command line would have it, if the option takes it."""
    given = words(where, value, option.multiple)
    try:
        option.process_value(context, given)
    except typer.BadParameter as error:
        problem = f"{where} is {value!r}: {error.message}"
        raise typer.BadParameter(problem, ctx=context) from None
    return given


def words(where: str, value: Any, several: bool) -> Any:
    """A scalar as text; a list as texts, and a mapping as NAME=VALUE, where several are taken;
    another mapping as JSON."""
    if isinstance(value, dict) and not several:
        return dumps(value, default=str)
    if several and isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return [f"{name}={word(where, one)}" for name, one in pairs]
    if several and isinstance(value, list):
        return [word(where, one) for one in cast("list[Any]", value)]
    return [word(where, value)] if several else word(where, value)


def word(where: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise typer.BadParameter(f"{where} is {value!r}; it must be a text, a number, true or false")


def model_names() -> list[str]:
    """The named models, for completion."""
    return [one.name for one in (*MODELS, *REPOSITORIES)]


ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=WHICH, show_default=DEFAULT, autocompletion=model_names),
]


def unless_argument(context: typer.Context, model: str | None) -> str | None:
    """The argument MODEL replaces the model of a config file."""
    source = context.get_parameter_source("model")
    is_in_file = source is not None and source.name == "DEFAULT_MAP"
    return None if is_in_file and context.params.get("argument") else model


ModelFlag = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help=WHICH,
        show_default=DEFAULT,
        callback=unless_argument,
        autocompletion=model_names,
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The model, and every setting of its engine."""

    model: ModelFlag = None
    config: ConfigOption = None
    settings: Settings = field(default_factory=Settings)

    def name(self, argument: str | None = None) -> str:
        return model_of(argument, self.model)


def model_of(argument: str | None, flag: str | None) -> str:
    """The model of the argument or the flag, or the default model."""
    if argument and flag and argument != flag:
        raise WrongOption(f"two models are given: {argument} and --model {flag}")
    if "" in (argument, flag):
        raise WrongOption("the name of the model is empty")
    return argument or flag or DEFAULT


def root(url: str) -> str:
    """The URL of a server without the /v1 that OpenAI clients add."""
    plain = url.rstrip("/").removesuffix("/v1")
    return plain if "://" in plain else f"http://{plain}"


def bearer(key: str | None) -> dict[str, str]:
    """The header with the API key, if there is one: the first, if the variable has several."""
    return {"Authorization": f"Bearer {key.split()[0]}"} if key and key.split() else {}
