"""A device whose models are divided among ranks: assembles an engine around rank 0."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.core.adapter import NO_ADAPTERS, AdapterConfig
from paceline.core.masks import TokenMasks
from paceline.core.settings.config import Config, LoadConfig, require
from paceline.kv.connector import needs_memory
from paceline.runner.parallel.divide import Shard, check_size
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.wiring.model import DraftWeights
from paceline.wiring.ranks.rank_processes import RankProcesses
from paceline.wiring.ranks.rank_wire import RankedModel
from paceline.wiring.ranks.ranked_runner import RankedRunner


class RankedDevice:
    """Stands for the module of a device, such as `wiring.cpu`, if there are several ranks."""

    def __init__(
        self,
        on: Any,
        device: str,
        model: str,
        start: Callable[[int], RankProcesses] = RankProcesses,
    ) -> None:
        """`start` gives so many ranks."""
        self._on, self._device, self._model, self._start = on, device, model, start
        self.USUAL_TOKENS: int = on.USUAL_TOKENS
        self.DEPTH: int = on.DEPTH

    def assemble(
        self,
        settings: dict[str, Any],
        own: LoadConfig,
        checkpoint: Checkpoint,
        scheduler_of: Callable[[Config], Scheduler] = Scheduler,
        masks: TokenMasks | None = None,
        draft: DraftWeights | None = None,
        adapters: AdapterConfig = NO_ADAPTERS,
    ) -> tuple[Scheduler, RankedRunner]:
        own = replace(own, device=self._device)
        check_ranks(own, checkpoint)
        size = own.tensor_parallel_size
        self._on.choose_device(Shard(0, size))
        ranks, backend = self._start(size), self._on.backend_of(size)
        try:
            group = ranks.build(RankedModel(self._model, settings, own, adapters, backend))
            given = settings, own, checkpoint, masks, draft, adapters
            loaded = ranks.guarded(partial(self._on.load, *given, group=group))
            runner = RankedRunner(loaded.runner, ranks)
            return self._on.started(replace(loaded, runner=runner), own, scheduler_of), runner
        except BaseException:
            ranks.close()
            raise


def check_ranks(own: LoadConfig, checkpoint: Checkpoint) -> None:
    """ConfigError if the settings, or the model, do not go with several ranks."""
    size = own.tensor_parallel_size
    alone = f"tensor_parallel_size is {size}, and"
    require(
        not (own.kv_connector and needs_memory(own.kv_connector)),
        f"{alone} kv_connector {own.kv_connector!r} moves the blocks of one rank: use 'host', "
        "'disk' or 'valkey'",
    )
    check_size(checkpoint.config, size)
