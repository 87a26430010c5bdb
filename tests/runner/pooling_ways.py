"""Requests for embeddings on schedules of every kind, with any runner."""

from typing import Any

import numpy as np

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.core.pooling import LAST, POOLING_KINDS, PooledMean
from tests.runner.driving import SETTINGS, TIGHT, drive

PROMPT = [5, 9, 2, 7, 1, 1, 3, 44, 60, 0, 12, 30, 30, 8]
PROMPTS = [PROMPT, [*PROMPT[:9], 4, 4], [7, 8] * 5, PROMPT[::-1], [3]]
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "in chunks": {"max_num_batched_tokens": 8},
    "ahead": {"max_num_batched_tokens": 8, "depth": 3},
    "tight, ahead": {**TIGHT, "max_num_batched_tokens": 12, "depth": 2},
    "swapped, ahead": {
        **TIGHT,
        "max_num_batched_tokens": 12,
        "depth": 2,
        "preemption_mode": "swap",
        "swap_space": 32,
    },
}


class Pooled:
    """A runner whose reports of hidden states are kept."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.means: dict[str, PooledMean] = {}

    def launch(self, plan: Plan) -> None:
        self._runner.launch(plan)

    def wait(self) -> StepResult:
        result: StepResult = self._runner.wait()
        for span in result.pooled:
            self.means.setdefault(span.request_id, PooledMean()).add(span)
        return result


def embeddings(make: Any, model: Any, depth: int = 1, **changes: Any) -> dict[str, np.ndarray]:
    """The embedding of each prompt in each kind, beside requests that generate."""
    asked = [
        Request(
            id=f"{kind} {number}",
            prompt=prompt,
            max_tokens=1,
            pooling=kind,
            reads_cache=kind == LAST,
        )
        for number, prompt in enumerate(PROMPTS)
        for kind in POOLING_KINDS
    ]
    asked += [
        Request(id=f"text {number}", prompt=prompt, max_tokens=9)
        for number, prompt in enumerate(PROMPTS)
    ]
    scheduler = Scheduler.create(**{**SETTINGS, **changes})
    runner = Pooled(make(model, scheduler))
    drive(scheduler, runner, asked[::-1], depth)
    found = {name: one.value() for name, one in runner.means.items()}
    assert len(found) == len(PROMPTS) * len(POOLING_KINDS)
    return {name: one for name, one in found.items() if one is not None}
