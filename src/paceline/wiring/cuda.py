"""The GPU as a device: loads a model, sizes its KV memory, captures graphs, measures steps."""

import gc
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from threading import Thread
from typing import Any

import torch

from paceline.core.adapter import AdapterConfig
from paceline.core.errors import ConfigError
from paceline.core.masks import TokenMasks
from paceline.core.multimodal import MultimodalConfig
from paceline.core.plugins import classes_of
from paceline.core.settings.config import Config, SpeculationConfig, StepConfig
from paceline.core.settings.load import LoadConfig
from paceline.core.system.start import START
from paceline.engine.loop.turn_times import TurnTimer
from paceline.engine.loop.warm_up import WarmUp
from paceline.kv.connector import needs_memory
from paceline.runner import attention_backend
from paceline.runner.attention_backend import Attention
from paceline.runner.cuda.adapters import AdapterSizes
from paceline.runner.cuda.device_memory import DeviceMemory, DevicePools, in_pool, kv_store
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.drafting.eagle3 import CudaEagle3
from paceline.runner.cuda.drafting.head_drafter import CudaHeadDrafter, check_embedding
from paceline.runner.cuda.drafting.mtp import CudaMtp
from paceline.runner.cuda.kernels.dry_run import compiler, dry_run
from paceline.runner.cuda.model import CUDA, CudaModel
from paceline.runner.cuda.residents import RING_BYTES, CudaImages
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.draft_heads.head import DraftWeights, HeadWeights
from paceline.runner.kv_store import KVStore
from paceline.runner.models.layer_groups import LayerGroups
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.parallel.tokens import AwaitedDrafts
from paceline.runner.proposer import PACKAGE, Drafter, class_of
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates
from paceline.wiring import memory
from paceline.wiring.device import (
    MEASURED_S,
    LoadedRunner,
    ModelLoad,
    least_room,
    part_of_model,
)
from paceline.wiring.memory import kv_groups
from paceline.wiring.model import embedding_for
from paceline.wiring.settings import (
    CUDA_DEFAULTS,
    GIB,
    Hardware,
    check,
    check_room,
    gpu_defaults,
    part_of,
    resolve,
    swap_bytes,
)

PROPOSERS: Mapping[str, str | type[Drafter]] = {
    **classes_of(PACKAGE),
    "draft_model": CudaDraftModel,
    "eagle3": CudaEagle3,
    "mtp": CudaMtp,
}
SUPPORT = CUDA
DEPTH: int = 2
USUAL_TOKENS: int = CUDA_DEFAULTS["max_num_batched_tokens"]
ATTENTION, INVARIANT_ATTENTION = "triton", "triton_fixed"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
CACHE_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
# Filters hold in float32: logits, probabilities, their order, sums in 64 bits (twice), and token
# counts (twice while they grow).
COPIES_OF_LOGITS = 9
SPARE_BYTES = 256 << 20  # for libraries, and for graphs of each kind of steps
KEPT_BLOCKS = 1 << 16  # more than most models leave room for
LINES = 10  # of the log, from beginning to end of a stage

log = logging.getLogger(__name__)


def begin() -> None:
    """Hash the compiler of kernels, and create what the library of GEMMs needs."""
    compiler()
    Thread(target=use_library, daemon=True).start()


def use_library() -> None:
    """Multiply something: the library of GEMMs begins, for the next thread that uses it too."""
    with suppress(RuntimeError):  # the model meets it too
        some = torch.zeros((16, 16), dtype=torch.bfloat16, device="cuda")
        torch.mm(some, some)


def load(load: ModelLoad, group: RankGroup | None = None) -> LoadedRunner:
    """Load the model, run the largest step once, give the remaining memory to KV, and capture the
    graphs. With a group, the runner is one rank; all ranks have the same settings."""
    settings, load_config, checkpoint = load.settings, load.config, load.checkpoint
    masks, draft, adapters = load.masks, load.draft, load.adapters
    usual = INVARIANT_ATTENTION if load_config.batch_invariant else ATTENTION
    name = usual if load_config.attention == "auto" else load_config.attention
    attention = attention_backend.load_for(name, "cuda", usual)
    load_config = checked(load_config, adapters, attention, group)
    dtype = DTYPES["bfloat16" if load_config.dtype == "auto" else load_config.dtype]
    kv_dtype = CACHE_DTYPES.get(load_config.kv_cache_dtype, dtype)
    model_config = part_of_model(checkpoint.config, group)
    attention_backend.check(name, attention, model_config, kv_dtype)
    defaults = gpu_defaults(model_config, dtype.itemsize)
    chosen = check(settings, load_config, model_config, defaults)
    step = part_of(StepConfig, chosen)
    if step.max_step_s:
        raise ConfigError("max_step_s is for a CPU; on a GPU, set max_num_batched_tokens")
    log.info("loading weights")
    drafter = drafter_of(chosen, draft, checkpoint, (dtype, kv_dtype), group)
    kind = dtype, load_config.batch_invariant
    pools = DevicePools() if load_config.enable_sleep_mode else None
    with START.phase("weights"), in_pool(pools, "weights"):
        model = load_model(checkpoint, chosen, kind, adapters, group)
    log.info("weights are loaded; running the largest step once, to measure its memory")
    sizes = sizes_of(step, load_config)
    groups = kv_groups(model_config, load_config, step.max_model_len, drafter.cell_bytes)
    with START.phase("largest step"):
        needed, rate = run_largest_step(
            *(model, drafter, attention, sizes, (kv_dtype, groups), masks),
            measures=load_config.swap_space > 0,
        )
    needed += (1 + drafter.store_count) * RING_BYTES if load_config.swap_space else 0
    free = free_bytes(load_config.gpu_memory_utilization) - needed
    bytes_each = {"value_bytes": kv_dtype.itemsize, "activation_bytes": dtype.itemsize}
    gpu = Hardware(max(free, 0), 1.0, defaults=defaults, kept_blocks=KEPT_BLOCKS, **bytes_each)
    gpu = least_room(gpu, group, 1 if group is None else ranks_on_gpu(group.shard.size))
    check_left(gpu.free_bytes, load_config, step)
    config = resolve(settings, load_config, model_config, gpu, drafter.cell_bytes)
    # The store has one block more, for rows that fill up a batch.
    size = config.cache.num_blocks + 1, config.cache.block_size
    with START.phase("KV memory"):
        kv = kv_store(pools, model_config, *size, kv_dtype, "cuda", groups)
        sizes = sizes_of(config.step, load_config)
        runner = with_images(CudaRunner(model, kv, attention, drafter, sizes, masks), model)
    if not load_config.enforce_eager:
        drafts = config.speculation.num_speculative_tokens > 0
        runner.warm(drafts, logged("capturing CUDA graphs"))
    rates = None
    if config.preemption.swap_space:
        runner.reserve_host(config.preemption.swap_space)
        rates = Rates(rate, runner.blocks_per_s())
    # Adapters are fitted to the weights of the start.
    changes = None if adapters.enable_lora else model
    keeper = keeper_of(model, kv, pools, load_config.kv_connector)
    image = None if model.images is None else model.images.smallest()
    loaded = LoadedRunner(config, runner, rates, has_ranks=group is not None, image=image)
    return replace(loaded, is_eager=load_config.enforce_eager, model=changes, keeper=keeper)


def check_left(free: int, load_config: LoadConfig, step: StepConfig) -> None:
    """ConfigError if no memory is left for KV, and its size is not set."""
    log.info("%.1f GiB are left for KV", free / GIB)
    if free <= 0 and not load_config.kv_cache_gib and not load_config.num_gpu_blocks_override:
        raise ConfigError(
            f"the weights and the largest step leave no memory for KV: raise "
            f"gpu_memory_utilization ({load_config.gpu_memory_utilization}) or lower "
            f"max_num_batched_tokens ({step.max_num_batched_tokens})"
        )


def keeper_of(
    model: CudaModel, kv: KVStore, pools: DevicePools | None, connector: str
) -> DeviceMemory:
    """What releases memory; with pools, it takes room on the host now."""
    is_shared = bool(connector) and needs_memory(connector)
    refusal = f"kv_connector {connector!r} reads the KV memory itself: it cannot be released"
    keeper = DeviceMemory(model, kv, pools, refusal if is_shared else "")
    if pools is not None:
        log.info("taking %.1f GiB of host memory, for sleep", pools.size("weights") / GIB)
        with START.phase("host memory"):
            keeper.reserve()
    return keeper


def started(
    loaded: LoadedRunner, load_config: LoadConfig, scheduler_of: Callable[[Config], Scheduler]
) -> Scheduler:
    """Run steps of every kind without graphs once, which compiles their kernels, and build a
    scheduler that knows the runner's speed."""
    config, runner, depth = loaded.config, loaded.runner, load_config.steps_in_flight(DEPTH)
    if not loaded.is_eager:
        with START.phase("steps without graphs"):
            report = logged("running steps without graphs once")
            # Other ranks compute what they are sent, and exchange tensors meanwhile.
            dry = nullcontext if loaded.has_ranks else dry_run
            WarmUp(runner, config, depth, loaded.image).run(report, dry)
    scheduler = scheduler_of(config)
    has_drafts = config.speculation.num_speculative_tokens > 0
    if has_drafts or scheduler.view.asks_step_times:
        log.info("measuring how long steps take")
        with START.phase("step times"):
            timer = TurnTimer(runner, config, depth)
            times = (timer.measure if has_drafts else timer.with_prompts)(MEASURED_S)
        if times is not None:
            scheduler.measure_steps(times)
    if loaded.rates is not None:
        scheduler.measure(loaded.rates)
    return scheduler


def choose_device(shard: Shard) -> None:
    """Ranks take GPUs in turn."""
    torch.cuda.set_device(shard.rank % torch.cuda.device_count())


def backend_of(size: int) -> str:
    """NCCL needs a GPU for each rank."""
    return "nccl" if torch.cuda.device_count() >= size else "gloo"


def ranks_on_gpu(size: int) -> int:
    """Ranks that share a GPU."""
    return -(-size // torch.cuda.device_count())


def checked(
    load_config: LoadConfig, adapters: AdapterConfig, attention: Attention, group: RankGroup | None
) -> LoadConfig:
    """Refuse settings that a GPU does not have. With gloo there are no graphs: it cannot exchange
    tensors inside of one."""
    check_room(swap_bytes(load_config), memory.free_bytes())
    most = attention.support.most_in_flight or load_config.depth
    if load_config.depth > most:
        raise ConfigError(f"depth is {load_config.depth}; this attention allows at most {most}")
    if adapters.enable_lora and not attention.support.mixed_graphs:
        # Capturing graphs for steps of any rows compiles all that steps with adapters need.
        raise ConfigError(f"enable_lora needs attention {ATTENTION!r} on a GPU: set it")
    if load_config.weights != "auto" or load_config.threads:
        raise ConfigError("weights and threads are for a CPU; on a GPU, set dtype")
    if load_config.batch_invariant:
        check_invariant(load_config, attention)
    is_captured = group is None or group.backend == "nccl"
    return load_config if is_captured else replace(load_config, enforce_eager=True)


def check_invariant(load_config: LoadConfig, attention: Attention) -> None:
    """ConfigError if a setting makes tokens depend on what else a step computes."""
    if not attention.support.is_invariant:
        raise ConfigError(
            f"attention {load_config.attention!r} is not batch-invariant; set attention to 'auto'"
        )


def load_model(
    checkpoint: Checkpoint,
    settings: dict[str, Any],
    how: tuple[torch.dtype, bool],
    adapters: AdapterConfig,
    group: RankGroup | None,
) -> CudaModel:
    """Load weights, with room for adapters, and for embeddings of images if the model reads
    some. `how` is the type of the weights, and whether the model is invariant."""
    step, encoder = part_of(StepConfig, settings), part_of(MultimodalConfig, settings)
    rows = encoder.encoder_cache_size or step.max_num_batched_tokens
    room = AdapterSizes(step.max_loras, adapters.max_lora_rank) if adapters.enable_lora else None
    length = step.max_model_len
    dtype, is_invariant = how
    load = CudaModel.invariant if is_invariant else CudaModel.load
    model = load(checkpoint, length, dtype, image_rows=rows, adapters=room, group=group)
    for kernels in model.kernels():
        log.info("kernels by rows: %s", kernels)
    return model


def with_images(runner: CudaRunner, model: CudaModel) -> CudaRunner:
    """The runner, which computes prompts with images if the model reads some."""
    if model.images is not None:
        runner.use_images(CudaImages(model.images, model, runner.state))
    return runner


def drafter_of(
    settings: dict[str, Any],
    draft: DraftWeights | None,
    checkpoint: Checkpoint,
    dtypes: tuple[torch.dtype, torch.dtype],
    group: RankGroup | None,
) -> Drafter:
    """The drafter that the settings name, which rank 0 has for all ranks; `dtypes` are those of
    weights and of KV."""
    config, length = (
        part_of(SpeculationConfig, settings),
        part_of(StepConfig, settings).max_model_len,
    )
    kind, (dtype, kv_dtype) = class_of(config, PROPOSERS), dtypes
    layout = StateLayout.of(checkpoint.config, dtype.itemsize)
    if config.num_speculative_tokens and layout is not None and not layout.keeps_updates:
        raise ConfigError(
            f"num_speculative_tokens is {config.num_speculative_tokens}, and on a GPU rejected "
            f"drafts would stay in the states of {checkpoint.config.architecture!r}: remove it, or "
            "use device 'cpu'"
        )
    if draft is None:
        return kind(config) if decides(group) else AwaitedDrafts(config, kind, kind.cell_bytes)
    if not issubclass(kind, (CudaDraftModel, CudaHeadDrafter)):
        raise ConfigError(f"proposer {config.proposer!r} does not draft on a GPU")
    if not decides(group):
        return AwaitedDrafts(config, kind, kind.bytes_of(draft.config, *dtypes))
    if issubclass(kind, CudaDraftModel):
        assert not isinstance(draft, HeadWeights), "a draft model is a checkpoint"
        return kind(config, CudaModel.load(draft, length, dtype), kv_dtype)
    assert isinstance(draft, HeadWeights), "a head is no checkpoint of a model"
    if draft.embedding is None:
        check_embedding(checkpoint.config)
    embedding = embedding_for(draft, checkpoint, group)
    return kind(
        config, kind.load_head(draft, length, dtype), draft.target_ids(), embedding, kv_dtype
    )


def sizes_of(step: StepConfig, load_config: LoadConfig) -> RunnerSizes:
    sizes = step.max_num_seqs, step.max_model_len, step.max_num_batched_tokens
    return RunnerSizes(*sizes, load_config.enforce_eager)


def logged(stage: str) -> Callable[[int, int], None]:
    """Log the progress of a stage in a few lines."""

    def report(done: int, total: int) -> None:
        if done * LINES // total > (done - 1) * LINES // total:
            log.info("%s: %d of %d", stage, done, total)

    return report


def free_bytes(utilization: float) -> int:
    """Return the free bytes within `gpu_memory_utilization`."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(free - total * (1.0 - utilization))


def run_largest_step(
    model: CudaModel,
    drafter: Drafter,
    attention: Attention,
    sizes: RunnerSizes,
    kv_kind: tuple[torch.dtype, LayerGroups],
    masks: TokenMasks | None,
    measures: bool,
) -> tuple[int, float]:
    """Run the largest step over a store of two blocks. Returns the bytes that a runner and that
    step take, without the states of its slots, and the positions that it computes per second, if
    that is asked for."""
    before = torch.cuda.memory_allocated()
    kv_dtype, groups = kv_kind
    kv = KVStore(model.config, 2, 16, kv_dtype, "cuda", groups)
    if not attention.support.mixed_graphs:  # it cannot run a step of prompts in a graph
        attention = attention_backend.load(ATTENTION)
    runner = CudaRunner(model, kv, attention, drafter, sizes, masks)
    torch.cuda.reset_peak_memory_stats()
    with dry_run():  # takes the same memory
        runner.rehearse(runner.state.kinds)
    if model.images is not None:
        model.images.rehearse(len(model.image_table))
    states = sizes.slots * memory.state_bytes(model.config, model.dtype.itemsize)
    peak = torch.cuda.max_memory_allocated() - before - states
    logits = sizes.slots * model.config.vocab * 4
    # Steps with drafts have logits of each, in the captured graphs and in the sampler.
    copies = COPIES_OF_LOGITS + 2 * drafter.config.num_speculative_tokens
    spare = SPARE_BYTES * len(runner.state.kinds)
    rate = runner.positions_per_s() if measures else 0.0
    del runner, kv
    gc.collect()  # graphs and their buffers refer to each other
    return peak + copies * logits + spare, rate
