"""`paceline serve`: an OpenAI-compatible server for one model."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.options import ConfigOption, ModelArgument, ModelFlag, model_of
from paceline.cli.setting_flags import ServingSettings, VllmFlags


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The model, the address and all settings.

    Attributes:
        host: Address to listen on; 0.0.0.0 for all interfaces.
        port: Port to listen on; 0: any free port.
        uds (PATH): Unix socket to listen at instead of a port.
    """

    argument: ModelArgument = None
    model: ModelFlag = None
    config: ConfigOption = None
    host: str = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000
    uds: Annotated[str, typer.Option(show_default=False)] = ""
    settings: ServingSettings = field(default_factory=ServingSettings)
    vllm: VllmFlags = field(default_factory=VllmFlags)


def run(options: ServeOptions) -> int:
    """Start an OpenAI-compatible server.

    It serves /v1/chat/completions, /v1/completions, /v1/responses, Anthropic's /v1/messages,
    /metrics, /health and more. SIGTERM or Ctrl-C shuts it down after running requests have
    finished, or after --drain-s.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.wiring.processes.serving import serve

    model = model_of(options.argument, options.model)
    with ProgressBar(model) as bar:
        serve(
            model,
            host=options.host,
            port=options.port,
            uds=options.uds,
            progress=bar,
            **options.vllm,
            **options.settings,
        )
    return 0
