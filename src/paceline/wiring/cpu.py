"""The CPU as a device: loads a model, sizes its KV memory, measures steps."""

import logging
from collections.abc import Callable
from time import process_time

import torch
from torch import Tensor

from paceline.core.adapter import AdapterConfig
from paceline.core.capabilities import NS
from paceline.core.errors import ConfigError
from paceline.core.settings.checks import require
from paceline.core.settings.config import Config, SpeculationConfig, StepConfig
from paceline.core.settings.load import LoadConfig
from paceline.core.system.host import limit_early
from paceline.core.system.start import START
from paceline.runner import attention_backend
from paceline.runner.adapters.host import HostAdapters, ResidentAdapters
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Coordinates
from paceline.runner.draft_heads.head import DraftWeights, HeadWeights
from paceline.runner.draft_heads.head_drafter import HeadDrafter
from paceline.runner.encoder_store import EncoderStore, ResidentImages
from paceline.runner.idle_memory import HostMemory
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.linear_choice import choose
from paceline.runner.layers.packed_cache import PackedCache
from paceline.runner.layers.torch_features import TORCH
from paceline.runner.model_drafter import ModelDrafter
from paceline.runner.models.model import Model
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.parallel.tokens import AwaitedDrafts
from paceline.runner.proposer import Drafter, class_of
from paceline.runner.proposers.draft_model import DraftModel
from paceline.runner.runner import TorchRunner
from paceline.runner.step_times import StepTimer
from paceline.runner.vision.image_encoder import ImageEncoder
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates
from paceline.wiring.device import (
    MEASURED_S,
    LoadedRunner,
    ModelLoad,
    least_room,
    part_of_model,
)
from paceline.wiring.memory import free_bytes, kv_groups
from paceline.wiring.model import embedding_for
from paceline.wiring.settings import (
    CPU_DEFAULTS,
    Hardware,
    block_bytes,
    check,
    check_memory,
    part_of,
    resolve,
)

SUPPORT = TORCH
DEPTH: int = 1  # planning and computing share the same cores
USUAL_TOKENS: int = CPU_DEFAULTS["max_num_batched_tokens"]
ATTENTION = "native"

log = logging.getLogger(__name__)


def begin() -> None:
    """There is nothing to do."""


def load(load: ModelLoad, group: RankGroup | None = None) -> LoadedRunner:
    """A runner, and the settings of a scheduler for it. With a group, the runner is one rank; all
    ranks have the same settings."""
    settings, load_config, checkpoint = load.settings, load.config, load.checkpoint
    masks, draft, adapters = load.masks, load.draft, load.adapters
    if load_config.kv_cache_dtype != "auto":
        raise ConfigError("kv_cache_dtype is for a GPU; on a CPU, KV is float32")
    if load_config.dtype not in ("auto", "float32"):
        log.warning(
            "dtype is %s; a CPU computes in float32, and weights says how products read the model",
            load_config.dtype,
        )
    name = ATTENTION if load_config.attention == "auto" else load_config.attention
    attention = attention_backend.load_for(name, "cpu", ATTENTION)
    sizes, ranks = part_of_model(checkpoint.config, group), 1 if group is None else group.shard.size
    attention_backend.check(name, attention, sizes, torch.float32)
    suited = check(settings, load_config, sizes, CPU_DEFAULTS)
    drafter, drafter_bytes = drafter_of(part_of(SpeculationConfig, suited), draft, group)
    check_memory(suited, load_config, sizes, free_bytes() // ranks, drafter_bytes)
    limit_early()
    if load_config.threads or ranks > 1:
        torch.set_num_threads(load_config.threads or max(torch.get_num_threads() // ranks, 1))
    length = part_of(StepConfig, suited).max_model_len
    with START.phase("weights"):
        model = load_model(checkpoint, load_config, length, group, load_config.batch_invariant)
    if draft is not None:
        embedding = embedding_for(draft, checkpoint, group)
        give_weights(drafter, draft, load_config, length, attention, embedding)
    # After the weights, which take memory too.
    room = least_room(Hardware.found(), group, ranks)
    config = resolve(settings, load_config, sizes, room, drafter_bytes)
    groups = kv_groups(sizes, load_config, length, drafter_bytes)
    kv = KVStore(sizes, config.cache.num_blocks, config.cache.block_size, groups=groups)
    step = config.step
    runner = TorchRunner(
        model, kv, attention, drafter, step.max_num_seqs, step.max_model_len, masks
    )
    if model.images is not None:
        runner.use_images(images_of(model.images, config))
    if adapters.enable_lora:
        require(
            not (load_config.batch_invariant and sizes.reads_images_whole),
            "batch_invariant computes rows with adapters one by one, and positions of images of "
            "this model read each other; remove enable_lora",
        )
        runner.use_adapters(adapters_of(model, adapters, step))
    # All ranks measure, because they compute together; rank 0 decides by what it found.
    cost = runner.measure_cost(step.max_model_len) if step.max_step_s else None
    rates = None
    if config.preemption.swap_space:
        runner.reserve_host(config.preemption.swap_space)
        rates = Rates(*runner.measure())
    # Adapters are fitted to the weights of the start.
    changes = None if adapters.enable_lora else model
    keeper = HostMemory(model, runner.kv_memory, free_bytes)
    return LoadedRunner(config, runner, rates, cost, model=changes, keeper=keeper)


def adapters_of(model: Model, adapters: AdapterConfig, step: StepConfig) -> ResidentAdapters:
    """Room for adapters."""
    host = HostAdapters(model.targets, adapters.max_lora_rank)
    return ResidentAdapters(host, model.adapters, step.max_loras, step.max_num_seqs)


def started(
    loaded: LoadedRunner, load_config: LoadConfig, scheduler_of: Callable[[Config], Scheduler]
) -> Scheduler:
    """Build a scheduler that knows the runner's speed."""
    scheduler, config = scheduler_of(loaded.config), loaded.config
    if loaded.rates is not None:
        scheduler.measure(loaded.rates)
    if loaded.cost is not None:
        per_s = NS // loaded.cost.position_ns
        log.info("%d tokens of a prompt take a second; max_step_s bounds steps by it", per_s)
        scheduler.measure_cost(loaded.cost)
    if config.speculation.num_speculative_tokens:
        # CPU time, because other processes may take turns with this one while it measures.
        times = StepTimer(loaded.runner, config, process_time).measure(MEASURED_S)
        if times is not None:
            scheduler.measure_steps(times)
    return scheduler


def choose_device(shard: Shard) -> None:
    """All ranks share the CPU."""


def backend_of(size: int) -> str:
    """What ranks exchange tensors through."""
    return "gloo"


def images_of(images: ImageEncoder, config: Config) -> ResidentImages:
    """Room for embeddings of images."""
    store = EncoderStore(images, torch.zeros(config.encoder_capacity, images.width))
    slots = config.step.max_num_seqs
    coordinates = Coordinates(slots, images.square) if images.has_axes else None
    return ResidentImages(store, coordinates, images.reads_itself)


def load_model(
    checkpoint: Checkpoint,
    load_config: LoadConfig,
    length: int,
    group: RankGroup | None = None,
    is_invariant: bool = False,
) -> Model:
    chosen = choose(load_config.weights, checkpoint)
    log.info("loading weights: %s", chosen)
    # A file of packed weights has whole products, and ranks have parts.
    is_packed = chosen.is_native and len(checkpoint.files) > 0 and group is None
    packed = (
        PackedCache(checkpoint.files, quantization=load_config.quantization) if is_packed else None
    )
    return Model.load(
        checkpoint,
        weights=chosen.name,
        max_model_len=length,
        packed=packed,
        group=group,
        is_invariant=is_invariant,
    )


def drafter_of(
    config: SpeculationConfig, draft: DraftWeights | None, group: RankGroup | None
) -> tuple[Drafter, int]:
    """The drafter that the settings name, without its weights, and the bytes that it needs for each
    position. Rank 0 has it for all ranks."""
    kind = class_of(config)
    if draft is not None and not issubclass(kind, ModelDrafter):
        raise ConfigError(f"proposer {config.proposer!r} does not draft on a CPU")
    drafter = kind(config)
    needed = drafter.cell_bytes if draft is None else block_bytes(draft.config, 1)
    return (drafter if decides(group) else AwaitedDrafts(config, type(drafter), needed)), needed


def give_weights(
    drafter: Drafter,
    draft: DraftWeights,
    load_config: LoadConfig,
    length: int,
    attention: Attention,
    embedding: Tensor | None,
) -> None:
    """Load the weights of a drafter, if it is one that has some. A head without an embedding uses
    that of the model."""
    if isinstance(drafter, DraftModel) and not isinstance(draft, HeadWeights):
        drafter.use(load_model(draft, load_config, length), attention)
    elif isinstance(drafter, HeadDrafter) and isinstance(draft, HeadWeights):
        embedding = None if embedding is None else embedding.float()
        drafter.use(drafter.load_head(draft, length), draft.target_ids(), embedding, attention)
