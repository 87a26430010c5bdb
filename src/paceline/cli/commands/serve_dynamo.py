"""`paceline serve-dynamo`: a worker of NVIDIA Dynamo for one model."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.cli.options import ConfigOption, ModelArgument, ModelFlag, model_of
from paceline.cli.setting_flags import Settings
from paceline.engine.settings import EngineSettings
from paceline.integrations.dynamo.settings import DynamoSettings
from paceline.wiring.settings import pop_settings


class WorkerSettings(Settings):
    """The settings of a worker, of its engine and of the engine's loop."""

    components: ClassVar[dict[str, type[Any]]] = {
        "worker": DynamoSettings,
        "loop": EngineSettings,
        **Settings.components,
    }


@dataclass(frozen=True, slots=True)
class ServeDynamoOptions:
    """The model, the settings of its worker and all settings of its engine."""

    argument: ModelArgument = None
    model: ModelFlag = None
    config: ConfigOption = None
    settings: WorkerSettings = field(default_factory=WorkerSettings)


def run(options: ServeDynamoOptions) -> int:
    """Serve a model as a worker of NVIDIA Dynamo.

    Its frontend, `python -m dynamo.frontend`, has the HTTP API and needs the same discovery backend
    and planes. KV events are published for its router unless --kv-events-config says otherwise.
    """
    from paceline.hub.progress_bar import ProgressBar
    from paceline.integrations.dynamo.worker import serve_dynamo

    model, settings = model_of(options.argument, options.model), dict(options.settings)
    worker: DynamoSettings = pop_settings(DynamoSettings, settings)
    with ProgressBar(model) as bar:
        serve_dynamo(model, worker, progress=bar, **settings)
    return 0
