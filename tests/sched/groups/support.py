"""Requests with several sequences, and what each of them must get."""

from typing import Any

from paceline import Plan, Request, Scheduler, StepResult
from paceline.testing.reference import reference
from tests.sched.support import VOCAB, Pipeline, ask, sampling, small, state, step

LENGTH = 64  # of the model


STOP = 5  # a stop token


def children(request: Request) -> dict[str, list[int]]:
    """What each child of a request must get."""
    each = [request.child(index) for index in range(request.width)]
    return {one.id: reference(one, VOCAB, LENGTH)[0] for one in each}


def run(scheduler: Scheduler, *asked: Request, depth: int = 1, vocab: int = VOCAB) -> Pipeline:
    for one in asked:
        scheduler.submit(one, 0.0)
    return Pipeline(scheduler, depth, vocab=vocab).run()


def forked(number: int = 3, prompt: int = 9, max_tokens: int = 9, **asked: Any) -> Scheduler:
    """A family that has forked and got its first tokens."""
    scheduler = small()
    scheduler.submit(ask("a", prompt, max_tokens=max_tokens, n=number, **asked), 0.0)
    step(scheduler)
    step(scheduler)
    return scheduler


def child_states(scheduler: Scheduler, name: str = "a") -> list[dict[str, Any]]:
    """The state of every child that has not ended."""
    return list(state(scheduler, name)["children"].values())


def tight(mode: str = "recompute", **settings: Any) -> Scheduler:
    space = {"preemption_mode": mode, "swap_space": 0 if mode == "recompute" else 16}
    few = {"num_blocks": 11, "max_num_seqs": 5, "max_num_batched_tokens": 9}
    return small(**few | space | settings)


def likely(plan: Plan, tokens: dict[str, int], scores: dict[str, float]) -> StepResult:
    """A result with these tokens and log-probabilities; of all others, 9 and -1."""
    return StepResult.of(
        plan,
        {label: [tokens.get(label, 9)] for label in sampling(plan)},
        logprobs={label: [scores.get(label, -1.0)] for label in sampling(plan)},
    )
