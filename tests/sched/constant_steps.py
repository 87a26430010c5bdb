"""A small scheduler, and steps in which every row that samples gets the same token."""

from typing import Any

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan


def make(**settings: Any) -> Scheduler:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64}
    return Scheduler.create(**{**sizes, "num_blocks": 32, "block_size": 4, **settings})


def request(name: str, prompt: list[int], **fields: Any) -> Request:
    return Request(id=name, prompt=prompt, **fields)  # pyright: ignore[reportArgumentType]


def sampling(plan: Plan) -> list[str]:
    rows = zip(plan.rows.labels, plan.rows.samples.tolist(), strict=True)
    return [label for label, samples in rows if samples]


def step(scheduler: Scheduler) -> Plan:
    plan = scheduler.plan(0.0)
    commit(scheduler, plan)
    return plan


def commit(scheduler: Scheduler, plan: Plan) -> None:
    result = StepResult.of(plan, {label: [5] for label in sampling(plan)})
    scheduler.commit(plan, result, 0.0)
