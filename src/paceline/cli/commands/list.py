"""`paceline list`: the models on this machine."""

import json
from dataclasses import asdict, dataclass

from paceline.cli.options import JsonFlag


@dataclass(frozen=True, slots=True)
class ListOptions:
    """How to print."""

    json: JsonFlag = False


def run(options: ListOptions) -> int:
    """List the models on this machine."""
    from paceline.hub.local_models import local_models

    models = local_models()
    if options.json:
        print(json.dumps([asdict(model) for model in models], default=str, indent=2))
        return 0
    if not models:
        print("no models on this machine; `paceline pull` downloads one")
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        print(f"{model.name:<{width}}  {model.megabytes:>9,.1f} MB  {model.path}")
    return 0
