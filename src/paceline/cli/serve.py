"""`paceline serve`: an OpenAI-compatible server for one model."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.options import ModelArgument, ModelFlag, model_of
from paceline.cli.setting_flags import ServingSettings


@dataclass(frozen=True, slots=True)
class Options:
    """What to serve, and where."""

    argument: ModelArgument = None
    model: ModelFlag = None
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets others in.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(help="0 takes any that is free.", min=0, max=65535)] = 8000
    settings: ServingSettings = field(default_factory=ServingSettings)


def run(options: Options) -> int:
    """Load a model and serve it over HTTP, in the manner of OpenAI.

    It listens for /v1/chat/completions, /v1/completions, /metrics, /health and more until it is
    told to end; then those who are here are answered first.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.serving import serve

    model = model_of(options.argument, options.model)
    with ProgressBar(model) as bar:
        serve(model, host=options.host, port=options.port, progress=bar, **options.settings)
    return 0
