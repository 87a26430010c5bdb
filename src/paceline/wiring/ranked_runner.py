"""Rank 0 of a model: a runner whose plans go to the other ranks too."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.core.capabilities import Capabilities
from paceline.core.plan import Plan, StepResult
from paceline.wiring.ranked_adapters import RankedAdapters
from paceline.wiring.ranked_blocks import RankedBlocks
from paceline.wiring.tensor_ranks import RankProcesses


class RankedRunner:
    """See `ports.Runner`. After any error the ranks are out of step, so the runner is lost."""

    def __init__(self, runner: Any, ranks: RankProcesses) -> None:
        self._runner, self.ranks = runner, ranks
        own = runner.host_adapters
        self.host_adapters = None if own is None else RankedAdapters(own, ranks)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._runner.capabilities, processors=False)  # ranks are processes

    def block_bytes(self) -> RankedBlocks:
        """The blocks of all ranks as bytes, for other threads."""
        return RankedBlocks(self._runner.block_bytes(), self.ranks)

    def launch(self, plan: Plan) -> None:
        self.ranks.check()
        self.ranks.run(plan)
        self.ranks.guarded(partial(self._runner.launch, plan))

    def wait(self) -> StepResult:
        self.ranks.check()
        return self.ranks.guarded(self._runner.wait)

    def is_lost(self) -> bool:
        return self.ranks.are_lost or self._runner.is_lost()

    def watch(self, report: Callable[[str], None]) -> None:
        """Call `report` with the reason if a rank is gone, whether or not a step runs."""
        self.ranks.watch(report)

    def close(self) -> None:
        self._runner.close()
        self.ranks.close()
