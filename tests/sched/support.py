"""A scheduler small enough to compute by hand, and the few moves that tests make with it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from paceline import Outputs, Plan, Request, Scheduler, StepResult
from paceline.core.request import Sequence
from paceline.testing.oracle import OracleRunner

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3, 4])  # of the pipeline
DISCIPLINES = pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
PROMPT = list(range(100, 113))  # 13 tokens: three full blocks and one more
TOKEN = 9  # what every row samples, unless a test says otherwise
VOCAB = 50  # of the oracle
SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 64,
    "num_blocks": 16,
    "block_size": 4,
}


def small(**settings: Any) -> Scheduler:
    return Scheduler.create(**SMALL | settings)


def drafting(drafts: int = 3, **settings: Any) -> Scheduler:
    """Every decode has as many drafts as are allowed."""
    return small(num_speculative_tokens=drafts, speculation="fixed", **settings)


def by_priority(**settings: Any) -> Scheduler:
    return small(policy="priority", **settings)


def ask(name: str, prompt: int | Iterable[int], max_tokens: int | None = 4, **more: Any) -> Request:
    """A request; a number asks for a prompt of that many tokens that nobody else has."""
    if isinstance(prompt, int):
        first = 1000 * sum(name.encode())
        prompt = range(first, first + prompt)
    return Request(id=name, prompt=np.array(list(prompt), np.int32), max_tokens=max_tokens, **more)


def answer(plan: Plan, tokens: Mapping[str, Iterable[int]] | None = None) -> StepResult:
    """What the device would say: one token for each row that samples, or those given."""
    every = {label: [TOKEN] for label in sampling(plan)}
    return StepResult.of(plan, every | dict(tokens or {}))


def sampling(plan: Plan) -> list[str]:
    """Labels of the rows that sample."""
    told = zip(plan.rows.labels, plan.rows.samples.tolist(), strict=True)
    return [label for label, samples in told if samples]


def commit(
    scheduler: Scheduler, plan: Plan, now: float = 0.0, **tokens: Iterable[int]
) -> dict[str, dict[str, Any]]:
    """The answer to a plan, folded in and checked; what clients get of it."""
    outputs = scheduler.commit(plan, answer(plan, tokens), now)
    scheduler.check()
    return outputs.to_dict()


def step(scheduler: Scheduler, now: float = 0.0, **tokens: Iterable[int]) -> dict[str, Any]:
    """One whole step; returns its plan."""
    plan = scheduler.plan(now)
    scheduler.check()
    commit(scheduler, plan, now, **tokens)
    return plan.to_dict()


def order(scheduler: Scheduler, now: float = 0.0) -> list[str]:
    """Who is admitted from here on, in order."""
    came: list[str] = []
    while not scheduler.idle:
        came += step(scheduler, now)["new"]
    return came


def crowded(**settings: Any) -> Scheduler:
    """Two residents at the edge of their first block, with one block free."""
    scheduler = small(**{"num_blocks": 3, "max_num_seqs": 2} | settings)
    for name in "ab":
        scheduler.submit(ask(name, 4, max_tokens=5), 0.0)
    step(scheduler)
    return scheduler


def gate(scheduler: Scheduler) -> tuple[str, str, int] | None:
    """Why nobody else was admitted in the latest step: reason, at whom, how many short."""
    found = scheduler.gate
    return (found.reason, found.request_id, found.short) if found else None


def tokens_of_steps(scheduler: Scheduler, steps: int) -> list[dict[str, int]]:
    """Who computed how much, step by step."""
    return [step(scheduler)["tokens"] for _ in range(steps)]


def finish_all(scheduler: Scheduler, now: float = 0.0) -> dict[str, list[int]]:
    """Step until nobody is left; the tokens that each request got meanwhile."""
    got: dict[str, list[int]] = {}
    for _ in range(1000):
        if scheduler.idle:
            return got
        for name, told in commit(scheduler, scheduler.plan(now), now).items():
            got.setdefault(name, []).extend(told["tokens"])
    raise AssertionError("no end in 1000 steps")


def state(scheduler: Scheduler, name: str) -> dict[str, Any]:
    return scheduler.snapshot()["requests"][name]


def blocks_of(scheduler: Scheduler, name: str) -> list[int]:
    return state(scheduler, name)["blocks"][0]


def counters(scheduler: Scheduler, name: str) -> tuple[int, int, int]:
    """Known, planned, computed."""
    now = state(scheduler, name)
    return now["known"], now["planned"], now["computed"]


def sequence(scheduler: Scheduler, name: str) -> Sequence:
    return scheduler.state.live[name]


def preempt(scheduler: Scheduler, name: str, may_swap: bool = True) -> None:
    """Preempt a resident as if its blocks were needed."""
    slot = sequence(scheduler, name).slot
    scheduler.components.departures.preempt(slot, "a test", may_swap=may_swap)


def findable(scheduler: Scheduler, prompt: Iterable[int], **more: Any) -> int:
    """Tokens that a request with this prompt would find in the cache."""
    asked = ask("finder", [*prompt, 0], **more)
    finder = Sequence(asked, -1, 0, 0.0, asked.prompt)
    return scheduler.state.prefixes.lookup(finder).tokens


class Pipeline:
    """Plans ahead of the results, with an oracle that checks every cell it reads."""

    def __init__(
        self, scheduler: Scheduler, depth: int, accept: float = 0.7, vocab: int = VOCAB
    ) -> None:
        pool, host = scheduler.state.cache.pool, scheduler.state.cache.host
        size = scheduler.state.cache.block_size
        self.scheduler, self.depth = scheduler, depth
        self.runner = OracleRunner(
            pool.size, size, vocab, accept, host_blocks=host.size, lag=depth - 1
        )
        self.plans: list[Plan] = []
        self.flight: list[tuple[Plan, StepResult]] = []
        self.got: dict[str, list[int]] = {}
        self.ends: dict[str, list[str]] = {}
        self.choices: dict[str, list[list[int]]] = {}

    def launch(self) -> Plan:
        plan = self.scheduler.plan(0.0)
        self.plans.append(plan)
        result = self.runner.run(plan)
        if not plan.empty:
            self.flight.append((plan, result))
        self.scheduler.check()
        return plan

    def land(self) -> None:
        plan, result = self.flight.pop(0)
        self.runner.settle(plan.step)  # copies to the host may be as late as this
        self.take(self.scheduler.commit(plan, result, now=0.0))
        self.scheduler.check()

    def take(self, outputs: Outputs) -> None:
        for name, told in outputs.to_dict().items():
            self.got.setdefault(name, []).extend(told["tokens"])
            if told["finish"]:
                self.ends.setdefault(name, []).append(told["finish"])
            if "choices" in told:
                self.choices[name] = told["choices"]

    def move(self) -> None:
        """Launch a step if there is room for one and something to compute. Otherwise land one."""
        has_launched = len(self.flight) < self.depth and not self.launch().empty
        if self.flight and not has_launched:
            self.land()

    def run(self) -> "Pipeline":
        """Until nobody is left."""
        for _ in range(1000):
            if self.scheduler.idle:
                return self
            self.move()
        raise AssertionError("no end in 1000 turns")

    def planned(self, name: str) -> int:
        """Positions handed out for one request, over all steps."""
        return sum(plan.to_dict()["tokens"].get(name, 0) for plan in self.plans)
