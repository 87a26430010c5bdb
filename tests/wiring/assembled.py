"""Schedulers and runners for checkpoints, as `assembly.build` makes them."""

from typing import Any

from paceline.core.settings.load import LoadConfig
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.wiring.device import ModelLoad, assemble, device_named


def assembled(
    device: str, settings: dict[str, Any], config: LoadConfig, checkpoint: Checkpoint, **more: Any
) -> tuple[Scheduler, Any]:
    load = ModelLoad(settings, config, checkpoint, **more)
    scheduler, loaded = assemble(device_named(device), load)
    return scheduler, loaded.runner
