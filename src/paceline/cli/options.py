"""Options of several commands."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.command import WrongOption
from paceline.cli.config_file import ConfigOption
from paceline.cli.setting_flags import Settings
from paceline.hub.catalogue import DEFAULT, MODELS, REPOSITORIES

REPOSITORY = (
    "a repository on Hugging Face: owner/name[@revision], for GGUF owner/name:FILE or "
    "owner/name:Q4_K_M."
)
WHICH = (
    f"{DEFAULT} or another name that `paceline pull --help` lists, a .gguf file, a model folder, "
    f"or {REPOSITORY}"
)


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
