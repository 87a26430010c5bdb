"""From a model's name to the parts of an engine."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.build.settings import Hardware, resolve, sort_settings
from paceline.engine.parts import Parts
from paceline.hub.catalogue import DEFAULT
from paceline.hub.progress import Progress, silent
from paceline.hub.pull import pull
from paceline.runner.attention.backend import load as load_attention
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.choose import choose
from paceline.runner.models.model import Model
from paceline.runner.runner import Runner
from paceline.runner.weights.files import open_checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.sched.swapping import Rates
from paceline.text.chat import ChatTemplate
from paceline.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def build(
    model: str = DEFAULT,
    *,
    progress: Progress = silent,
    hardware: Callable[[], Hardware] = Hardware.found,
    **settings: Any,
) -> Parts:
    """Fetch a model if need be, load it, and make everything that serves it."""
    rest, own = sort_settings(settings)
    path = Path(pull(model, progress=progress))
    checkpoint = open_checkpoint(path)
    config = resolve(rest, own, checkpoint.config, hardware())
    if own.threads:
        torch.set_num_threads(own.threads)
    chosen = choose(own.weights, checkpoint.config)
    log.info("weights: %s", chosen)
    loaded = Model.load(checkpoint, linear_kind=chosen.kind)
    kv = KVStore(checkpoint.config, config.cache.num_blocks, config.cache.block_size)
    attention = load_attention(own.attention)
    step = config.step
    runner = Runner(loaded, kv, attention, step.max_num_seqs, step.max_model_len)
    scheduler = Scheduler(config)
    if config.preemption.swap_space:
        runner.reserve_host(config.preemption.swap_space)
        scheduler.measure(Rates(*runner.measure()))
    tokenizer = Tokenizer.load(path)
    template = ChatTemplate.of(tokenizer)
    return Parts(model, scheduler, runner, tokenizer, template, depth=own.depth)
