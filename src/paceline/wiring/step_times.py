"""Measures the steps of a runner when an engine starts, for the speculation of its scheduler."""

from paceline.core.config import Config
from paceline.core.step_times import StepTimes
from paceline.runner.step_times import Room, StepTimer
from paceline.sched.scheduler import Scheduler

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
