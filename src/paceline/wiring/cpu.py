"""A scheduler and a runner for a model on the CPU."""

import logging
from collections.abc import Callable
from time import process_time
from typing import Any

import torch

from paceline.core.adapter import NO_ADAPTERS, AdapterConfig
from paceline.core.config import Config, LoadConfig, SpeculationConfig, StepConfig
from paceline.core.errors import ConfigError
from paceline.core.masks import TokenMasks
from paceline.core.openmp import limit_early
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.residents import ResidentAdapters
from paceline.runner.attention.backend import Attention, runs_on_gpu
from paceline.runner.attention.backend import load as load_attention
from paceline.runner.coordinates import Coordinates
from paceline.runner.encoder_store import EncoderStore
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.linear_choice import choose
from paceline.runner.layers.native import NativeLinear
from paceline.runner.layers.packed_cache import PackedCache
from paceline.runner.models.eagle3_head import Eagle3Head
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter
from paceline.runner.proposer import load as load_proposer
from paceline.runner.proposers.draft_model import DraftModel
from paceline.runner.proposers.eagle3 import Eagle3
from paceline.runner.resident_items import ResidentItems
from paceline.runner.runner import TorchRunner
from paceline.runner.step_times import StepTimer
from paceline.runner.vision.image_encoder import ImageEncoder
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.eagle3 import EMBEDDING, Eagle3Folder
from paceline.sched.scheduler import Scheduler
from paceline.sched.swapping import Rates
from paceline.wiring.drafting import DraftWeights
from paceline.wiring.kv_groups import kv_groups
from paceline.wiring.memory import free_bytes
from paceline.wiring.settings import (
    CPU_DEFAULTS,
    Hardware,
    block_bytes,
    check,
    check_memory,
    part_of,
    resolve,
)
from paceline.wiring.step_times import measure_steps, room_of

DEPTH = 1  # planning and computing share the same cores
USUAL_TOKENS: int = CPU_DEFAULTS["max_num_batched_tokens"]
ATTENTION = "native"

log = logging.getLogger(__name__)


def assemble(
    settings: dict[str, Any],
    own: LoadConfig,
    checkpoint: Checkpoint,
    scheduler_of: Callable[[Config], Scheduler] = Scheduler,
    masks: TokenMasks | None = None,
    draft: DraftWeights | None = None,
    adapters: AdapterConfig = NO_ADAPTERS,
) -> tuple[Scheduler, TorchRunner]:
    if own.dtype not in ("auto", "float32") or own.kv_cache_dtype != "auto":
        raise ConfigError("dtype and kv_cache_dtype are for a GPU; on a CPU, set weights")
    attention = load_attention(ATTENTION if own.attention == "auto" else own.attention)
    if runs_on_gpu(attention):
        raise ConfigError(f"attention {own.attention!r} is for a GPU; on a CPU, use {ATTENTION!r}")
    suited = check(settings, own, checkpoint.config, CPU_DEFAULTS)
    drafter = load_proposer(part_of(SpeculationConfig, suited))
    drafter_bytes = drafter.cell_bytes if draft is None else block_bytes(draft.config, 1)
    check_memory(suited, own, checkpoint.config, free_bytes(), drafter_bytes)
    limit_early()
    if own.threads:
        torch.set_num_threads(own.threads)
    length = part_of(StepConfig, suited).max_model_len
    loaded = load_model(checkpoint, own, length)
    if draft is not None:
        give_weights(drafter, draft, own, length, attention)
    # After the weights, which take memory too.
    config = resolve(settings, own, checkpoint.config, Hardware.found(), drafter_bytes)
    groups = kv_groups(checkpoint.config, own, length, drafter_bytes)
    blocks = config.cache.num_blocks, config.cache.block_size
    kv = KVStore(checkpoint.config, *blocks, groups=groups)
    step = config.step
    runner = TorchRunner(
        loaded, kv, attention, drafter, step.max_num_seqs, step.max_model_len, masks
    )
    if loaded.images is not None:
        runner.use_items(items_of(loaded.images, config))
    if adapters.enable_lora:
        host = HostAdapters(loaded.targets, adapters.max_lora_rank)
        places = step.max_loras, step.max_num_seqs
        runner.use_adapters(ResidentAdapters(host, loaded.adapters, *places))
    scheduler = scheduler_of(config)
    if config.preemption.swap_space:
        runner.reserve_host(config.preemption.swap_space)
        scheduler.measure(Rates(*runner.measure()))
    if config.speculation.num_speculative_tokens:
        # CPU time, because other processes may take turns with this one while it measures.
        measure_steps(scheduler, StepTimer(runner, room_of(config), process_time))
    return scheduler, runner


def items_of(images: ImageEncoder, config: Config) -> ResidentItems:
    """Room for embeddings of images."""
    store = EncoderStore(images, torch.zeros(config.encoder_capacity, images.width))
    slots = config.step.max_num_seqs
    return ResidentItems(store, Coordinates(slots, images.square) if images.square else None)


def load_model(checkpoint: Checkpoint, own: LoadConfig, length: int) -> Model:
    chosen = choose(own.weights, checkpoint)
    log.info("loading weights: %s", chosen)
    is_packed = chosen.kind is NativeLinear and len(checkpoint.files) > 0
    packed = PackedCache(checkpoint.files) if is_packed else None
    return Model.load(checkpoint, linear_kind=chosen.kind, max_model_len=length, packed=packed)


def give_weights(
    drafter: Drafter, draft: DraftWeights, own: LoadConfig, length: int, attention: Attention
) -> None:
    """Load the weights of a drafter."""
    if isinstance(drafter, DraftModel) and not isinstance(draft, Eagle3Folder):
        drafter.use(load_model(draft, own, length), attention)
    elif isinstance(drafter, Eagle3) and isinstance(draft, Eagle3Folder):
        embedding = draft.read(EMBEDDING).float() if draft.has_embedding else None
        head = Eagle3Head.load(draft, draft.head, max_model_len=length)
        drafter.use(head, draft.target_ids(), embedding, attention)
