"""An engine whose device computes nothing and takes a fixed time; it notes when its host does what.

`build` is a factory of components, for the process of an engine.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.capabilities import Capabilities
from paceline.core.config import Config
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.engine.components import EngineComponents
from paceline.engine.core.ports import StepObserver
from paceline.sched.scheduler import Scheduler

FACTORY = "paceline.simulate.calibration.idle_device:build"
STEP_S = 0.01  # longer than what host and front end take
TOKEN = 7
TIMES = ("planning", "launched", "landed", "committed")
COUNTS = ("rows", "admitted", "finished", "changed")


@dataclass(frozen=True, slots=True, eq=False)
class TurnLog:
    """The steps of an engine in their order; times are in seconds on the system's clock.

    planning, launched   when the host began to plan a step, and had launched it
    landed, committed    when it had its result, and had committed it
    rows                 sequences that computed something
    admitted, finished   sequences that joined with it, or ended before it
    changed              1 if its rows were others than those of the step before, else 0
    """

    planning: F64
    launched: F64
    landed: F64
    committed: F64
    rows: I32
    admitted: I32
    finished: I32
    changed: I32

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def load(path: Path) -> "TurnLog":
        with np.load(path) as found:
            return TurnLog(*(found[name] for name in (*TIMES, *COUNTS)))


class TurnRecorder(StepObserver):
    """Writes the steps of an engine to a file when that is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._times: dict[str, list[float]] = {name: [] for name in TIMES}
        self._plans: list[Plan] = []
        self._begun = 0.0

    def planning(self) -> None:
        self._begun = monotonic()

    def launched(self, plan: Plan) -> None:
        if not plan.empty:
            self._plans.append(plan)
            self._times["planning"].append(self._begun)
            self._times["launched"].append(monotonic())

    def landed(self, plan: Plan) -> None:
        self._times["landed"].append(monotonic())

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        if not plan.empty:
            self._times["committed"].append(monotonic())

    def close(self) -> None:
        count = len(self._times["committed"])
        plans = self._plans[:count]
        counts = {
            "rows": [len(one.rows) for one in plans],
            "admitted": [len(one.admitted) for one in plans],
            "finished": [len(one.finished) for one in plans],
            "changed": [1, *(int(one.rows is not two.rows) for one, two in pairwise(plans))][
                :count
            ],
        }
        columns: dict[str, Any] = {name: np.array(one) for name, one in counts.items()}
        columns |= {name: np.array(taken[:count]) for name, taken in self._times.items()}
        np.savez(self._path, **columns)


class IdleRunner:
    """One step after another, each of `STEP_S`."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self._running: deque[tuple[float, StepResult]] = deque()  # each with the time of its end
        self._free_at = 0.0  # when the device has run all of them

    def launch(self, plan: Plan) -> None:
        if plan.empty:
            return
        ids = np.full((len(plan.rows), 1), TOKEN, np.int32)
        self._free_at = max(self._free_at, monotonic()) + STEP_S
        result = StepResult(ids, plan.rows.samples.astype(np.int32))
        self._running.append((self._free_at, result))

    def wait(self) -> StepResult:
        done_at, result = self._running.popleft()
        sleep(max(done_at - monotonic(), 0.0))
        return result

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to release."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedComponents(EngineComponents):
    """With a log of its steps in the file that `model` names."""

    def _observer(self) -> StepObserver:
        return TurnRecorder(Path(self.model))


def build(model: str, *, settings: Mapping[str, Any], depth: int) -> EngineComponents:
    """The scheduler has these settings. The front end, which is elsewhere, has the tokenizer."""
    scheduler, absent = Scheduler(Config.of(**settings)), None
    tokens: Any = absent
    return ObservedComponents(model, scheduler, IdleRunner(), tokens, tokens, depth=depth)
