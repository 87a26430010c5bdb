"""Sequence groups with windows, in pools of hardly more blocks than they need, end well."""

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.testing.reference import reference
from tests.sched.support import VOCAB, Pipeline, ask, preempt, small

FULL = {"kind": "full"}
TURNS = 600  # of a pipeline, until all requests must have ended
FAILED = [31]  # a member found more than its leader, and the family never returned


def drive(pipeline: Pipeline, preempting: set[int]) -> None:
    """Run to the end, and preempt the family in some turns."""
    scheduler = pipeline.scheduler
    for turn in range(TURNS):
        if scheduler.idle:
            return
        if turn in preempting and "a" in scheduler.snapshot()["running"]:
            preempt(scheduler, "a")
            scheduler._planner.steady = None  # a plan preempts before it looks at it
        while len(pipeline.flight) < pipeline.depth and not pipeline.launch().empty:
            pass
        if pipeline.flight:
            pipeline.land()
    raise AssertionError(f"no end in {TURNS} turns")


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", [*range(12), *FAILED])
def test_a_preempted_family_ends_in_the_smallest_pool(seed: int) -> None:
    random = Random(seed)
    window, size = random.choice([3, 4, 6, 8]), random.choice([1, 2, 4])
    sliding = {"kind": "sliding_window", "window": window}
    settings: dict[str, Any] = {
        "block_size": size,
        "max_num_batched_tokens": random.choice([4, 6, 8, 12]),
        "attention_groups": random.choice([[sliding], [FULL, {**sliding, "count": 2}]]),
    }
    width, prompt = random.choice([2, 3]), random.randint(6, 30)
    tokens = random.randint(8, 30)
    settings["enable_prefix_caching"] = random.random() < 0.3
    tables = small(**settings, num_blocks=1000).state.cache.tables
    need = tables.most_blocks(min(prompt + tokens, 64), width, prompt - 1)
    scheduler = small(**settings, num_blocks=need + random.choice([0, 0, 1, 2, 4]))
    scheduler.submit(ask("a", prompt, max_tokens=tokens, n=width, seed=seed), 0.0)
    other = ask("b", random.randint(3, 20), max_tokens=random.randint(3, 30))
    with suppress(RequestError):  # it can never fit
        scheduler.submit(other, 0.0)
    pipeline = Pipeline(scheduler, random.choice([2, 3]))
    pipeline.runner.groups = scheduler.config.cache.groups
    drive(pipeline, {random.randint(3, 40) for _ in range(2)})
    assert set(pipeline.ends) >= {"a"}
    if "b" in pipeline.ends:
        assert pipeline.got["b"] == reference(other, VOCAB, 64)[0]
