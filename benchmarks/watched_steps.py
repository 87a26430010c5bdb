"""An engine whose steps are logged: what each was made of, and when it was launched and landed.

`build` is a factory of components, as `paceline.wiring.assembly:build` is. The environment variable
PACELINE_STEP_LOG names the file that has the steps once the engine is closed. The settings of the
scheduler are in the file of the same name that ends in .json as soon as it is built.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from paceline.core.arrays import F64, Bool
from paceline.core.plan import Plan, StepResult
from paceline.engine.components import EngineComponents
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.wiring import assembly

FACTORY = "benchmarks.watched_steps:build"
STEP_LOG = "PACELINE_STEP_LOG"
TIMES = ("begun", "launched", "waited", "landed")  # of the launch and of the wait: begin and end


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """Steps in the order in which they ran; times are in seconds on the system's clock.

    begun, launched   when their launch began and ended
    waited, landed    when the engine began to wait for them, and had their result
    """

    batches: list[BatchSummary]
    begun: F64
    launched: F64
    waited: F64
    landed: F64

    def __len__(self) -> int:
        return len(self.batches)

    def where(self, kept: Bool) -> "StepLog":
        batches = [one for one, keep in zip(self.batches, kept.tolist(), strict=True) if keep]
        return StepLog(batches, *(getattr(self, name)[kept] for name in TIMES))

    def arrays(self) -> dict[str, Any]:
        """For a file of numpy."""
        names = [one.name for one in fields(BatchSummary)]
        columns = {name: np.array([getattr(one, name) for one in self.batches]) for name in names}
        return columns | {name: getattr(self, name) for name in TIMES}

    @staticmethod
    def of(arrays: Mapping[str, Any]) -> "StepLog":
        columns = (arrays[one.name].tolist() for one in fields(BatchSummary))
        batches = [BatchSummary(*values) for values in zip(*columns, strict=True)]
        return StepLog(batches, *(arrays[name] for name in TIMES))


class LoggedRunner:
    """Passes everything on to a runner. What steps are made of is found out at the end."""

    def __init__(self, runner: Any, path: Path) -> None:
        self._runner, self._path = runner, path
        self._plans: list[Plan] = []
        self._launches: list[tuple[float, float]] = []
        self._waits: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: Plan) -> None:
        begin = monotonic()
        self._runner.launch(plan)
        if not plan.empty:
            self._launches.append((begin, monotonic()))
            self._plans.append(plan)

    def wait(self) -> StepResult:
        begin = monotonic()
        result = self._runner.wait()
        self._waits.append((begin, monotonic()))
        return result

    def close(self) -> None:
        self._runner.close()
        count = len(self._waits)
        launches, waits = (np.array(one[:count]) for one in (self._launches, self._waits))
        before: list[Plan | None] = [None, *self._plans]
        batches = [BatchSummary.of(*two) for two in zip(self._plans[:count], before, strict=False)]
        log = StepLog(batches, *launches.T, *waits.T) if count else StepLog([], *[np.empty(0)] * 4)
        np.savez(self._path, **log.arrays())


def build(model: str, **settings: Any) -> EngineComponents:
    path = Path(os.environ[STEP_LOG])
    components = assembly.build(model, **settings)
    about = {"depth": components.depth, "settings": components.scheduler.config.to_dict()}
    path.with_suffix(".json").write_text(json.dumps(about))
    runner: Any = LoggedRunner(components.runner, path)
    return replace(components, runner=runner)
