"""A runner on a device with the settings of its scheduler, and its measured step times."""

from dataclasses import dataclass, replace
from typing import Any

from paceline.core.capabilities import StepCost, StepTimes
from paceline.core.settings.config import Config
from paceline.runner.models.config import ModelConfig
from paceline.runner.parallel.group import RankGroup
from paceline.runner.step_times import Room, StepTimer
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates
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


MEASURED_S = 2.0  # after so many seconds no further step time is measured


def measure_steps(scheduler: Scheduler, timer: StepTimer) -> None:
    """Give the scheduler its step times, if the model is long enough for a step with drafts."""
    plain, drafted = timer.measure(MEASURED_S)
    if drafted:
        scheduler.measure_steps(StepTimes(plain, drafted))


def room_of(config: Config) -> Room:
    """The sizes within which step times are measured."""
    cache, step, drafts = config.cache, config.step, config.speculation.num_speculative_tokens
    sizes = step.max_num_seqs, cache.num_blocks, cache.block_size, step.max_model_len
    return Room(*sizes, step.max_num_batched_tokens, drafts, len(cache.groups))
