"""A runner on a device with the settings of its scheduler, for all of a model or one rank."""

from dataclasses import dataclass, replace
from typing import Any

from paceline.core.config import Config
from paceline.core.step_times import StepCost
from paceline.runner.models.config import ModelConfig
from paceline.runner.parallel.group import RankGroup
from paceline.sched.swapping import Rates
from paceline.wiring.settings import Hardware


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRunner:
    """What a device module has built before there is a scheduler."""

    config: Config
    runner: Any
    rates: Rates | None = None  # None: blocks are not swapped
    cost: StepCost | None = None  # of a position; None: nothing depends on it


def part_of_model(model: ModelConfig, group: RankGroup | None) -> ModelConfig:
    """The sizes of a model, or those of one rank."""
    return model if group is None else group.shard.config(model)


def least_room(own: Hardware, group: RankGroup | None, sharing: int) -> Hardware:
    """The memory of the rank that has least, if so many ranks share the memory of a device."""
    if group is None:
        return own
    return replace(own, free_bytes=group.least(own.free_bytes // sharing))
