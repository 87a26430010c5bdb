"""All settings of an engine: the given ones, completed for the model and the machine."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from errno import ENOMEM
from math import prod
from typing import Any, TypeVar

from paceline.core.adapter import AdapterConfig
from paceline.core.errors import ConfigError, nearest
from paceline.core.multimodal import MultimodalConfig
from paceline.core.settings.config import PROMISES, CacheConfig, Config, StepConfig
from paceline.core.settings.load import LoadConfig
from paceline.kv.connector import takes_states
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import manifest
from paceline.runner.models.layer_groups import LayerGroups, one_group
from paceline.sched.replay.recorded_scheduler import RECORD_SETTINGS
from paceline.sched.scheduler import Scheduler
from paceline.wiring.memory import (
    attention_groups,
    free_bytes,
    kv_groups,
    longest_within,
    state_bytes,
    tables_of_one,
)
from paceline.wiring.vllm.configs import spelled_out
from paceline.wiring.vllm.table import VLLM
from paceline.wiring.vllm.values import as_json

log = logging.getLogger(__name__)

GIB = 1 << 30
CPU_DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 512,
    "max_num_seqs": 72,
    "max_step_s": 0.25,
    "slots_for_others": 8,
}
# Blocks that admissions leave free cost a GPU less than computing preempted prompts again.
CUDA_DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "slots_for_others": 32,
    "watermark": 0.01,
}
# With policy `longest`, prompts fill up steps to this many positions if the weights are large.
# With small weights, a step with a chunk of a prompt costs more than it saves.
FILL_POSITIONS, FILL_LEAST_BYTES = 256, 3 * GIB
# A batch is done when its last request is: the longest request goes first, and after an hour the
# oldest one.
BATCH_DEFAULTS: dict[str, Any] = {"policy": "longest", "ageing_s": 3600.0}
SLOTS_OF_OTHERS = 8  # one in so many of fewer slots than by default
LOAD_SETTINGS = [setting.name for setting in fields(LoadConfig)]
# Settings of a scheduler by itself, and why an engine does not take them.
SCHEDULER_ONLY = {
    "num_blocks": "an engine counts its blocks; see num_gpu_blocks_override",
    "recompute_tokens_per_s": "an engine measures it",
    "swap_blocks_per_s": "an engine measures it",
    "enable_kv_cache_events": "an engine publishes the events; see kv_events_config",
    "model_fingerprint": "an engine finds it from the model's files",
    "system_fingerprint": "an engine finds it from the model's files and its kernels",
    "lookahead_slots": "no drafter of an engine writes beyond its row",
    "attention_groups": "an engine reads them from the model",
    "state_blocks": "an engine reads it from the model",
}
# Names of everything that `LLM` takes. `swap_space` is in GiB, and not in blocks.
ENGINE_SETTINGS = [
    *(name for name in Config.names() if name not in SCHEDULER_ONLY),
    *(*LOAD_SETTINGS, *RECORD_SETTINGS, *(setting.name for setting in fields(AdapterConfig))),
]
C = TypeVar("C")
KV_SHARE = 0.25  # of the free memory, for KV by default
USUAL_BYTES = 2 * GIB  # for KV on a CPU by default, or two sequences of max_model_len


@dataclass(frozen=True, slots=True)
class Hardware:
    """The memory of a device, and the defaults that suit the device."""

    free_bytes: int
    share: float = KV_SHARE  # of these, for KV
    value_bytes: int = 4  # of one number in KV
    defaults: Mapping[str, Any] = field(default_factory=lambda: CPU_DEFAULTS)
    kept_blocks: int = 0  # for cached prefixes, beyond what running sequences can use
    usual_bytes: int | None = None  # for KV at most by default, if two sequences fit
    activation_bytes: int = 4  # of one number in activations

    @staticmethod
    def found() -> "Hardware":
        return Hardware(free_bytes(), usual_bytes=USUAL_BYTES)


def block_bytes(
    model: ModelConfig, block_size: int, value_bytes: int = 4, groups: LayerGroups | None = None
) -> int:
    """Memory of one block: keys and values of the layers of a group, by default of all layers."""
    layers = (groups or one_group(model.windows)).layers_per_block
    return layers * block_size * model.cell.values * value_bytes


def for_batches(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an engine for batches. A given policy is kept."""
    is_ours = settings.get("policy", BATCH_DEFAULTS["policy"]) == BATCH_DEFAULTS["policy"]
    is_ours = is_ours and not PROMISES & settings.keys()
    together = {"max_step_s": 0.0, "slots_for_others": 0}  # there are no others
    return {**BATCH_DEFAULTS, **together, **settings} if is_ours else {**together, **settings}


def gpu_defaults(model: ModelConfig, value_bytes: int) -> dict[str, Any]:
    """Defaults for a model on a GPU; `value_bytes` is the size of a weight."""
    weights = value_bytes * sum(map(prod, manifest(model).values()))
    fill = FILL_POSITIONS if weights >= FILL_LEAST_BYTES else 0
    return CUDA_DEFAULTS | {"fill_positions": fill}


def suggested(
    settings: Mapping[str, Any], model: ModelConfig, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Complete the settings that do not depend on memory."""
    chosen = {**defaults, "max_model_len": model.max_position, **settings}
    if not chosen.get("enable_chunked_prefill", True) and "max_num_batched_tokens" not in settings:
        chosen["max_num_batched_tokens"] = chosen["max_model_len"]  # a step takes whole prompts
    chosen |= slots_within(chosen, settings)
    if "max_step_s" not in settings and not may_be_paced(chosen, settings):
        chosen.pop("max_step_s", None)
    if "fill_positions" not in settings and part_of(StepConfig, chosen).unfillable:
        chosen["fill_positions"] = 0
    return chosen


def slots_within(chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Default numbers of slots that fit the numbers that were given."""
    slots, budget = chosen.get("max_num_seqs"), chosen.get("max_num_batched_tokens")
    if not (isinstance(slots, int) and isinstance(budget, int)):
        return {}
    found: dict[str, Any] = {}
    if "max_num_seqs" not in settings and slots > budget > 0:
        found["max_num_seqs"] = slots = budget
    if "slots_for_others" in chosen and "slots_for_others" not in settings:
        found["slots_for_others"] = min(chosen["slots_for_others"], slots // SLOTS_OF_OTHERS)
    return found


def may_be_paced(chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Is the time of a step bounded by default? A budget that was given stands."""
    timeless = {name: value for name, value in chosen.items() if name != "max_step_s"}
    is_cut = not part_of(MultimodalConfig, chosen).disable_chunked_mm_input
    is_free = is_cut and not part_of(StepConfig, timeless).unpaced
    return is_free and "max_num_batched_tokens" not in settings and not chosen.get("fill_positions")


def check(
    settings: Mapping[str, Any],
    load_config: LoadConfig,
    model: ModelConfig,
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Complete them as `suggested` does; ConfigError if they are wrong, before weights are read."""
    chosen = suggested(settings, model, defaults)
    step = part_of(StepConfig, chosen)
    groups = kv_groups(model, load_config, step.max_model_len)
    chosen["attention_groups"] = attention_groups(groups)
    cache = part_of(CacheConfig, chosen)
    chosen["state_blocks"] = -(
        -state_bytes(model) // block_bytes(model, cache.block_size, groups=groups)
    )
    if model.chunk is not None and model.chunk % cache.block_size:
        raise ConfigError(
            f"block_size is {cache.block_size}, which must divide the {model.chunk} positions of a "
            f"chunk of attention of {model.architecture!r}"
        )
    connector = load_config.kv_connector
    if model.states is not None and connector and not takes_states(connector):
        raise ConfigError(
            f"kv_connector is {connector!r}, which does not move the states that layers of "
            f"{model.architecture!r} keep: use host, disk or valkey, or remove the setting"
        )
    if step.max_model_len > model.max_position:
        known = step.max_model_len, model.max_position
        log.warning("max_model_len is %d; the model was trained for %d positions", *known)
    least = tables_of_one(cache, step).most_blocks(step.max_model_len)
    blocks = {"num_blocks": least, "swap_space": int(load_config.swap_space > 0)}
    config = Config.of(**chosen, **blocks)
    try:
        Scheduler(config)
    except OSError as error:
        if error.errno != ENOMEM:
            raise
        raise ConfigError(
            f"there is no memory for tables of max_num_seqs ({step.max_num_seqs}) sequences of "
            f"max_model_len ({step.max_model_len}) tokens: lower one of them"
        ) from None
    return chosen


def part_of(kind: type[C], settings: Mapping[str, Any]) -> C:
    """One component of the settings, while others are not known yet."""
    names = {setting.name for setting in fields(kind)}  # pyright: ignore[reportArgumentType]
    return kind(**{name: value for name, value in settings.items() if name in names})


def resolve(
    settings: dict[str, Any],
    load_config: LoadConfig,
    model: ModelConfig,
    hardware: Hardware,
    drafter_bytes: int = 0,
) -> Config:
    """All settings of the scheduler, completed for the model and the memory. A drafter may have KV
    too, of `drafter_bytes` for each position."""
    chosen = suggested(settings, model, hardware.defaults)
    step = part_of(StepConfig, chosen)
    groups = kv_groups(model, load_config, step.max_model_len, drafter_bytes)
    chosen["attention_groups"] = attention_groups(groups)
    cache = part_of(CacheConfig, chosen)
    size, tables = cache.block_size, tables_of_one(cache, step)
    least = tables.most_blocks(step.max_model_len)
    each = block_bytes(model, size, hardware.value_bytes, groups) + size * drafter_bytes
    state = state_bytes(model, hardware.activation_bytes)
    chosen["state_blocks"] = snapshot = -(-state // each)
    kept = hardware.kept_blocks if cache.enable_prefix_caching else 0
    useful = max(step.max_num_seqs * (least + snapshot), kept) * each
    if hardware.usual_bytes is not None:
        useful = min(useful, max(hardware.usual_bytes, 2 * (least + snapshot) * each))
    free = hardware.free_bytes - step.max_num_seqs * state
    found = min(free * hardware.share, useful)
    given = load_config.kv_cache_gib * GIB or found
    blocks = load_config.num_gpu_blocks_override or int(given) // each
    if not blocks:
        raise ConfigError(
            f"a block of block_size ({size}) tokens needs {each / GIB:.3g} GiB, but KV has "
            f"{given / GIB:.3g} GiB: lower block_size, or raise kv_cache_gib"
        )
    if blocks < least and "max_model_len" in settings:
        raise ConfigError(
            f"max_model_len is {step.max_model_len} and needs {least} blocks of {size}, but there "
            f"is memory for {blocks}: lower max_model_len, or raise kv_cache_gib"
        )
    if load_config.swap_space:
        chosen.setdefault("preemption_mode", "auto")
    log.info(
        "KV cache: %.2f GiB, %d blocks of %d tokens; kv_cache_gib changes it",
        *(blocks * each / GIB, blocks, size),
    )
    if blocks < least:
        chosen["max_model_len"] = longest_within(tables, blocks, step.max_model_len)
        log.warning(
            "max_model_len is %d instead of %d: there is memory for %d blocks of %d",
            *(chosen["max_model_len"], step.max_model_len, blocks, size),
        )
    return Config.of(
        **chosen, num_blocks=blocks, swap_space=int(load_config.swap_space * GIB) // each
    )


def check_memory(
    settings: Mapping[str, Any],
    load_config: LoadConfig,
    model: ModelConfig,
    free: int,
    drafter_bytes: int = 0,
) -> None:
    """ConfigError if KV and swap space on a CPU request more memory than this machine has free."""
    size = part_of(CacheConfig, settings).block_size
    length = part_of(StepConfig, settings).max_model_len
    groups = kv_groups(model, load_config, length, drafter_bytes)
    each = block_bytes(model, size, groups=groups) + size * drafter_bytes
    blocks = load_config.num_gpu_blocks_override * each
    cache = "num_gpu_blocks_override" if blocks else "kv_cache_gib"
    states = part_of(StepConfig, settings).max_num_seqs * state_bytes(model)
    kv = blocks or load_config.kv_cache_gib * GIB
    check_room({"max_num_seqs": states, cache: kv, **swap_bytes(load_config)}, free)


def swap_bytes(load_config: LoadConfig) -> dict[str, float]:
    """Bytes of host memory that blocks are swapped to, by the name of the setting."""
    return {"swap_space": load_config.swap_space * GIB}


def check_room(requested: Mapping[str, float], free: int) -> None:
    """ConfigError if settings together request more than `free` bytes."""
    for name, amount in requested.items():
        if amount > free:
            raise ConfigError(
                f"{name} requests {amount / GIB:.1f} GiB of memory, and {free / GIB:.1f} GiB are "
                f"free: lower {name}"
            )
        free -= int(amount)


def sort_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], LoadConfig]:
    """Split settings into those of the scheduler and those of loading.

    ConfigError names the nearest setting for an unknown name.
    """
    settings = as_json(spelled_out(settings))
    ours = {name: settings[name] for name in LOAD_SETTINGS if name in settings}
    rest = {name: value for name, value in settings.items() if name not in ours}
    for name in rest:
        if name in SCHEDULER_ONLY:
            raise ConfigError(f"{name} is a setting of a scheduler alone: {SCHEDULER_ONLY[name]}")
        if name in VLLM and name not in Config.names():
            raise ConfigError(f"{name} is not supported: {VLLM[name].reason}")
        if name not in Config.names():
            raise ConfigError(f"unknown setting {name!r}{nearest(name, ENGINE_SETTINGS)}")
    return rest, LoadConfig(**ours)


def pop_settings(kind: Any, settings: dict[str, Any]) -> Any:
    """Remove the settings of one kind from those that were given."""
    names = {one.name for one in fields(kind)} & settings.keys()
    return kind(**{name: settings.pop(name) for name in names})
