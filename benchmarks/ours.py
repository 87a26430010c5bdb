"""Our side: paceline's scheduler, journal and statistics on, without a model or a device.

For example `python benchmarks/ours.py steady:64 async:64 waiting:1000 churn pressure nano`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from paceline import Outputs, Plan, Request, Scheduler, StepResult

# isort: split
from cases import BLOCK_SIZE, MAX_MODEL_LEN, Case
from harness import Counts, Step, serve
from workloads import FAKE_TOKEN, Work

STEP_S = 0.02  # the virtual time from one plan to the next
AS_PEER: dict[str, Any] = {"reserve_full_prompt": False, "free_order": "lru"}


class PacelineSide:
    """The scheduler as an engine drives it, on a virtual clock."""

    def __init__(self, case: Case, work: list[Work]) -> None:
        self._scheduler = Scheduler.create(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=case.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            num_blocks=case.usable_blocks,
            block_size=BLOCK_SIZE,
            policy="fcfs",
            **(AS_PEER if case.as_peer else {}),
        )
        self._samples = case.samples
        self._now = 0.0
        self._unfinished = len(work)
        self._last: Step | None = None

    def submit(self, serial: int, work: Work) -> None:
        request = Request(
            id=str(serial),
            prompt=work.prompt,
            max_tokens=work.max_tokens,
            ignore_eos=True,
            n=self._samples,
        )
        self._scheduler.submit(request, now=self._now)

    def plan(self) -> Plan:
        self._now += STEP_S
        return self._scheduler.plan(now=self._now)

    def fake(self, plan: Plan) -> Step:
        """A token for every row that samples. Plans that share their rows share the result."""
        rows, last = plan.rows, self._last
        if last is not None and last.plan.rows is rows:
            step = Step(plan, last.result, last.tokens, last.rows, last.samples)
        else:
            ids = np.full((len(rows.slot), 1), FAKE_TOKEN, np.int32)
            result = StepResult(ids=ids, count=rows.samples.astype(np.int32))
            tokens, samples = int(rows.count.sum()), int(rows.samples.sum())
            step = Step(plan, result, tokens, len(rows.slot), samples)
        self._last = step
        return step

    def commit(self, plan: Plan, result: StepResult) -> Outputs:
        return self._scheduler.commit(plan, result, now=self._now)

    def observe(self, outputs: Outputs) -> None:
        self._unfinished -= len(outputs.finished)

    def unfinished(self) -> int:
        return self._unfinished

    def release(self, serials: Iterable[int]) -> None:
        for serial in serials:
            self._scheduler.abort(str(serial), now=self._now)

    def counts(self) -> Counts:
        stats = self._scheduler.stats
        return Counts(stats.preemptions, stats.prefix_queries, stats.prefix_hits)


if __name__ == "__main__":
    serve(PacelineSide, {"numpy": np.__version__})
