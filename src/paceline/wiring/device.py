"""Devices load a model, size its memory and start it; one module for each kind of device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

from paceline.core.adapter import NO_ADAPTERS, AdapterConfig
from paceline.core.capabilities import StepCost
from paceline.core.masks import TokenMasks
from paceline.core.multimodal import ImageInput
from paceline.core.settings.config import Config
from paceline.core.settings.load import LoadConfig
from paceline.runner.draft_heads.head import DraftWeights
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import BackendSupport
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.renewal import Renewable
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates
from paceline.wiring.settings import Hardware

MEASURED_S = 2.0  # after so many seconds no more step times are measured


@dataclass(frozen=True, slots=True, eq=False)
class ModelLoad:
    """What a device loads: a checkpoint, with the settings of the scheduler and of loading."""

    settings: dict[str, Any]
    config: LoadConfig
    checkpoint: Checkpoint
    masks: TokenMasks | None = None
    draft: DraftWeights | None = None
    adapters: AdapterConfig = NO_ADAPTERS


class MemoryKeeper(Protocol):
    """Releases the memory of a model on its device while no step runs, and takes it again. Tensors
    keep their addresses."""

    def check(self, level: int) -> None:
        """RequestError if the memory cannot be released."""
        ...

    def release(self, level: int) -> None:
        """Drop KV; keep the weights on the host (1), or drop them (2)."""
        ...

    def restore(self, tags: Sequence[str]) -> None:
        """Take memory for "weights", with what was kept of them, or for "kv_cache"."""
        ...

    def free_bytes(self) -> int:
        """Of the device."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRunner:
    """A runner that has no scheduler yet, and its settings."""

    config: Config
    runner: Any  # `TorchRunner`, `CudaRunner`, or `RankedRunner` around one
    rates: Rates | None = None  # None: blocks are not swapped
    cost: StepCost | None = None  # of a position; None: nothing depends on it
    is_eager: bool = False  # start without CUDA graphs and without a warm-up
    has_ranks: bool = False  # other ranks compute the same steps
    model: Renewable | None = None  # None: its weights cannot be changed
    keeper: MemoryKeeper | None = None  # of its memory
    image: ImageInput | None = None  # one to warm up with; None: the model reads none


class Device(Protocol):
    """A kind of device that models run on. Each is a module of this folder, so that CUDA is
    imported on a GPU alone."""

    SUPPORT: BackendSupport  # what it computes
    USUAL_TOKENS: int  # positions of a step, if the settings do not say
    DEPTH: int  # steps in flight, if the settings do not say

    def begin(self) -> None:
        """Start what takes time beside Python, and is needed by every model."""
        ...

    def load(self, load: ModelLoad, group: RankGroup | None = None) -> LoadedRunner:
        """Load the model and size its KV memory. With a group, the runner is one rank of several,
        which all have the same settings."""
        ...

    def started(
        self,
        loaded: LoadedRunner,
        load_config: LoadConfig,
        scheduler_of: Callable[[Config], Scheduler],
    ) -> Scheduler:
        """Warm up, and build a scheduler that knows the runner's speed."""
        ...

    def choose_device(self, shard: Shard) -> None:
        """Take the device of a rank."""
        ...

    def backend_of(self, size: int) -> str:
        """What so many ranks exchange tensors through: "nccl" or "gloo"."""
        ...


def device_named(name: str) -> Device:
    return cast(Device, import_module(f"paceline.wiring.{name}"))


def assemble(
    device: Device, load: ModelLoad, scheduler_of: Callable[[Config], Scheduler] = Scheduler
) -> tuple[Scheduler, LoadedRunner]:
    """A scheduler and a runner for a model on one device."""
    loaded = device.load(load)
    return device.started(loaded, load.config, scheduler_of), loaded


def part_of_model(model: ModelConfig, group: RankGroup | None) -> ModelConfig:
    """The sizes of a model, or those of one rank."""
    return model if group is None else group.shard.config(model)


def least_room(hardware: Hardware, group: RankGroup | None, sharing: int) -> Hardware:
    """The memory of the rank that has least, if so many ranks share the memory of a device."""
    if group is None:
        return hardware
    return replace(hardware, free_bytes=group.least(hardware.free_bytes // sharing))
