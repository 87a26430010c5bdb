"""How long a workload takes under memory pressure, by what becomes of those who give way.

The real scheduler on a virtual clock: a step takes a fixed time, a time for each position it
computes and one for each block it moves to the host or back. Run `python
benchmarks/preemption.py`; it prints one JSON line per way and cost setting.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from paceline import Plan, Request, Scheduler, StepResult
from paceline.testing.loop import Loop
from paceline.testing.runner import SimulatedDevice

# isort: split
import workloads
from scheduler import machine
from workloads import FAKE_TOKEN

NUM_BLOCKS, SEQUENCES, HOST_BLOCKS = 6143, 256, 4096
STEP_S, DECODE_S = 0.004, 4e-6  # a step, and a position beyond what it waits for memory anyway
MODES = ("recompute", "swap", "auto")


@dataclass(frozen=True, slots=True)
class Costs:
    """How fast a device computes prompts and moves blocks."""

    name: str
    tokens_per_s: float
    blocks_per_s: float

    def step_s(self, plan: Plan) -> float:
        prefill = int(plan.rows.count[plan.rows.count > 1].sum())
        moved = len(plan.swap_out) + len(plan.swap_in)
        steps = STEP_S + DECODE_S * len(plan.rows)
        return steps + prefill / self.tokens_per_s + moved / self.blocks_per_s


COSTS = (
    Costs("slow link", tokens_per_s=40_000, blocks_per_s=1_000),
    Costs("fast link", tokens_per_s=5_000, blocks_per_s=50_000),
)


class Fake:
    """Samples the same token for everyone."""

    def run(self, plan: Plan) -> StepResult:
        ids = np.full((len(plan.rows), 1), FAKE_TOKEN, np.int32)
        return StepResult(ids, plan.rows.samples.astype(np.int32))


def run(mode: str, costs: Costs, work: Callable[[], list[workloads.Work]]) -> dict[str, object]:
    scheduler = Scheduler.create(
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=8192,
        max_model_len=4096,
        num_blocks=NUM_BLOCKS,
        preemption_mode=mode,
        swap_space=0 if mode == "recompute" else HOST_BLOCKS,
        recompute_tokens_per_s=costs.tokens_per_s,
        swap_blocks_per_s=costs.blocks_per_s,
    )
    requests = [
        Request(id=str(i), prompt=one.prompt, max_tokens=one.max_tokens, ignore_eos=True)
        for i, one in enumerate(work())
    ]
    loop = Loop(scheduler, SimulatedDevice(Fake().run, costs.step_s))
    for _ in loop.run(requests):
        pass
    stats = scheduler.stats
    return {
        "virtual_s": round(loop.clock(), 3),
        "preemptions": stats.preemptions,
        "swapped_out_blocks": stats.swapped_out_blocks,
        "swapped_in_blocks": stats.swapped_in_blocks,
        "computed": stats.planned,
    }


def main() -> None:
    for name in ("pressure", "pressure_long"):
        for costs in COSTS:
            for mode in MODES:
                figures = run(mode, costs, getattr(workloads, name))
                head = {"case": name, "costs": costs.name, "mode": mode}
                print(json.dumps(head | figures | {"machine": machine()}), flush=True)


if __name__ == "__main__":
    main()
