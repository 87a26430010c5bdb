"""A scheduler and a runner for a model on the CPU."""

import logging
from collections.abc import Callable
from time import process_time
from typing import Any

import torch

from paceline.core.config import Config, LoadConfig, SpeculationConfig, StepConfig
from paceline.core.errors import ConfigError
from paceline.core.masks import TokenMasks
from paceline.core.openmp import limit_early
from paceline.runner.attention.backend import load as load_attention
from paceline.runner.attention.backend import runs_on_gpu
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.linear_choice import choose
from paceline.runner.layers.native import NativeLinear
from paceline.runner.layers.packed_cache import PackedCache
from paceline.runner.models.model import Model
from paceline.runner.proposer import load as load_proposer
from paceline.runner.runner import TorchRunner
from paceline.runner.step_times import StepTimer
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.sched.swapping import Rates
from paceline.wiring.memory import free_bytes
from paceline.wiring.settings import (
    CPU_DEFAULTS,
    Hardware,
    check,
    check_memory,
    part_of,
    resolve,
)
from paceline.wiring.step_times import measure_steps, room_of

DEPTH = 1  # planning and computing share the same cores
ATTENTION = "native"

log = logging.getLogger(__name__)


def assemble(
    settings: dict[str, Any],
    own: LoadConfig,
    checkpoint: Checkpoint,
    scheduler_of: Callable[[Config], Scheduler] = Scheduler,
    masks: TokenMasks | None = None,
) -> tuple[Scheduler, TorchRunner]:
    if own.dtype not in ("auto", "float32") or own.kv_cache_dtype != "auto":
        raise ConfigError("dtype and kv_cache_dtype are for a GPU; on a CPU, set weights")
    attention = load_attention(ATTENTION if own.attention == "auto" else own.attention)
    if runs_on_gpu(attention):
        raise ConfigError(f"attention {own.attention!r} is for a GPU; on a CPU, use {ATTENTION!r}")
    suited = check(settings, own, checkpoint.config, CPU_DEFAULTS)
    check_memory(settings, own, checkpoint.config, free_bytes())
    proposer = load_proposer(part_of(SpeculationConfig, suited))
    limit_early()
    if own.threads:
        torch.set_num_threads(own.threads)
    chosen = choose(own.weights, checkpoint)
    log.info("loading weights: %s", chosen)
    length = part_of(StepConfig, suited).max_model_len
    is_packed = chosen.kind is NativeLinear and len(checkpoint.files) > 0
    packed = PackedCache(checkpoint.files) if is_packed else None
    loaded = Model.load(checkpoint, linear_kind=chosen.kind, max_model_len=length, packed=packed)
    # After the weights, which take memory too.
    config = resolve(settings, own, checkpoint.config, Hardware.found())
    kv = KVStore(checkpoint.config, config.cache.num_blocks, config.cache.block_size)
    step = config.step
    runner = TorchRunner(
        loaded, kv, attention, proposer, step.max_num_seqs, step.max_model_len, masks
    )
    scheduler = scheduler_of(config)
    if config.preemption.swap_space:
        runner.reserve_host(config.preemption.swap_space)
        scheduler.measure(Rates(*runner.measure()))
    if config.speculation.num_speculative_tokens:
        # CPU time, because other processes may take turns with this one while it measures.
        measure_steps(scheduler, StepTimer(runner, room_of(config), process_time))
    return scheduler, runner
