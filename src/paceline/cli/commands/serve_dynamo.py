"""`paceline serve-dynamo`: a worker of NVIDIA Dynamo for one model."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import typer

from paceline.cli.config_file import ConfigOption
from paceline.cli.options import ModelArgument, ModelFlag, model_of
from paceline.cli.setting_flags import Settings
from paceline.engine.settings import EngineSettings


class WorkerSettings(Settings):
    """The settings of an engine and of its loop."""

    components: ClassVar[dict[str, type[Any]]] = {"loop": EngineSettings, **Settings.components}


@dataclass(frozen=True, slots=True)
class DynamoFlags:
    """How Dynamo's frontend finds the worker; the variables are those of Dynamo."""

    namespace: Annotated[
        str, typer.Option(envvar="DYN_NAMESPACE", help="Namespace of the fleet.")
    ] = "dynamo"
    component: Annotated[
        str,
        typer.Option(
            help="Name of the workers that do the same.",
            show_default="prefill with --role prefill, else backend",
        ),
    ] = ""
    endpoint: Annotated[str, typer.Option(help="Name of the endpoint of the worker.")] = "generate"
    discovery_backend: Annotated[
        Literal["etcd", "kubernetes", "file", "mem"],
        typer.Option(
            envvar="DYN_DISCOVERY_BACKEND",
            help="Where workers announce themselves; file: in the folder DYN_FILE_KV.",
        ),
    ] = "etcd"
    request_plane: Annotated[
        Literal["tcp", "nats"],
        typer.Option(envvar="DYN_REQUEST_PLANE", help="How requests reach the worker."),
    ] = "tcp"
    event_plane: Annotated[
        Literal["zmq", "nats"],
        typer.Option(envvar="DYN_EVENT_PLANE", help="How KV events and loads reach the frontend."),
    ] = "zmq"
    served_model_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the model.", show_default="MODEL")
    ] = ""
    tool_call_parser: Annotated[
        str,
        typer.Option(metavar="NAME", help="Dynamo's parser of tool calls.", show_default="none"),
    ] = ""
    reasoning_parser: Annotated[
        str,
        typer.Option(metavar="NAME", help="Dynamo's parser of reasoning.", show_default="none"),
    ] = ""
    drain_s: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Time that running requests get to finish after a signal; then they move to "
            "other workers.",
        ),
    ] = 30.0


@dataclass(frozen=True, slots=True)
class ServeDynamoOptions:
    """The model, its place in the fleet and all settings of its engine."""

    argument: ModelArgument = None
    model: ModelFlag = None
    config: ConfigOption = None
    dynamo: DynamoFlags = field(default_factory=DynamoFlags)
    settings: WorkerSettings = field(default_factory=WorkerSettings)


def run(options: ServeDynamoOptions) -> int:
    """Serve a model as a worker of NVIDIA Dynamo.

    Its frontend, `python -m dynamo.frontend`, has the HTTP API and needs the same discovery backend
    and planes. KV events are published for its router unless --kv-events-config says otherwise.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.integrations.dynamo.worker import DynamoSettings, serve_dynamo

    model = model_of(options.argument, options.model)
    with ProgressBar(model) as bar:
        place = DynamoSettings(**asdict(options.dynamo))
        serve_dynamo(model, place, progress=bar, **options.settings)
    return 0
