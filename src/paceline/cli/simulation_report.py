"""What the commands that simulate check before they run, and what they all say."""

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from paceline.cli.command import WrongOption
from paceline.core.errors import ConfigError
from paceline.core.system.host import processor_name
from paceline.simulator.loads import LoadSource, Workload
from paceline.simulator.recorded import RecordedLoad
from paceline.simulator.server import ServerModel


def check_drafts(*models: ServerModel) -> None:
    """Refuse an acceptance that would have no effect: no model has drafts."""
    drafts = [one.config.speculation.num_speculative_tokens for one in models]
    if models[0].drafting is not None and not any(drafts):
        raise WrongOption("--acceptance needs drafts, such as --set num_speculative_tokens=3")


def check_explained(names: Iterable[str], load: Workload, title: str) -> None:
    """ConfigError for a request that is not in the load, before anything runs."""
    known = {one.id for one in load.requests}
    for name in names:
        if name not in known:
            some = ", ".join(one.id for one in islice(load.requests, 5))
            raise ConfigError(f"there is no request {name!r} in {title}, which has {some}, ...")


def about(model: ServerModel, load: str, source: LoadSource) -> list[str]:
    """What is simulated, in sentences."""
    profile = model.profile
    lines = [f"{load} on {profile.device or 'a device'} with {profile.model or 'a model'}."]
    if isinstance(source, RecordedLoad) and source.ending:
        lines.append(f"The recording is not complete: {source.ending}.")
    if model.drafting is not None:
        lines.append(f"Each draft is right with a chance of {model.drafting.acceptance:g}.")
    return lines + doubts(model)


def doubts(model: ServerModel) -> list[str]:
    """Why results for this machine may be far off."""
    return model.profile.doubts(processor_name(), platform.machine())


def print_record(record: Mapping[str, Any]) -> None:
    """JSON alone on the standard output, and its warnings on the other one."""
    print(json.dumps(record))
    for line in record["warnings"]:
        print(line, file=sys.stderr)
