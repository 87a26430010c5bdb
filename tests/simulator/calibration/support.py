"""A runner whose steps take what a profile says, on a clock of its own."""

import numpy as np

from paceline.core.plan import Plan, StepResult
from paceline.core.settings.config import Config
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import Profile

TRUTH = Profile.of(
    {
        "format": 1,
        "decode": {
            "fixed_s": 1e-3,
            "positions": [[0, 0], [8, 1e-4], [64, 2e-3]],
            "contexts": [[0, 0], [1, 1e-8]],
        },
        "mixed": {
            "fixed_s": 2e-3,
            "positions": [[0, 0], [256, 0.0], [1024, 4e-3]],
            "samples": [[0, 0], [1, 1e-5]],
            "contexts": [[0, 0], [1, 2e-8]],
            "pairs": [[0, 0], [1, 1e-9]],
        },
        "moves": {"copies": [[0, 0], [1, 1e-5]], "swap_in": [[0, 0], [1, 1e-4], [2, 1.2e-4]]},
    }
)
CONFIG = Config.of(
    max_model_len=4096,
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    num_blocks=20_000,
    preemption_mode="swap",
    swap_space=1000,
)


class KnownRunner:
    """Steps run one after another; launching takes no time."""

    def __init__(self, truth: Profile = TRUTH) -> None:
        self.now, self.steps, self.resident = 0.0, 0, set[int]()
        self._truth, self._ends = truth, list[float]()

    def clock(self) -> float:
        return self.now

    def launch(self, plan: Plan) -> None:
        self.resident -= set(plan.released)
        admitted = {new.slot for new in plan.admitted}
        assert not admitted & self.resident, "a slot is admitted twice"
        self.resident |= admitted
        assert set(plan.rows.slot.tolist()) <= self.resident
        if not plan.empty:
            begin = max([self.now, *self._ends[-1:]])
            self._ends.append(begin + self._truth.device_s(BatchSummary.of(plan)))
            self.steps += 1

    def wait(self) -> StepResult:
        self.now = max(self.now, self._ends.pop(0))
        return StepResult(np.zeros((0, 1), np.int32), np.zeros(0, np.int32))
