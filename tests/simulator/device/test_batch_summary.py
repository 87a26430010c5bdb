"""What a step is made of."""

from dataclasses import replace

from paceline import Request, Scheduler, StepResult
from paceline.simulator.device.batch_summary import BatchSummary


def test_of_a_plan() -> None:
    scheduler = Scheduler.create(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=32)
    scheduler.submit(Request(id="a", prompt=range(10), max_tokens=4), now=0.0)
    plan = scheduler.plan(now=0.0)
    prompt = BatchSummary.of(plan)
    kind = {"has_prompts": True, "is_changed": True}
    assert prompt == BatchSummary(1, 10, 1, 10, pairs=55, admitted=1, deepest=10, **kind)
    scheduler.commit(plan, StepResult.of(plan, {"a": [1]}), now=0.0)
    first = scheduler.plan(now=0.0)
    assert BatchSummary.of(first, plan) == replace(BatchSummary.decode(1, 11), is_changed=True)
    scheduler.commit(first, StepResult.of(first, {"a": [1]}), now=0.0)
    again = BatchSummary.of(scheduler.plan(now=0.0), first)
    assert again == BatchSummary.decode(1, 12), "the rows are the same"


def test_of_a_plan_with_drafts() -> None:
    settings = {"num_blocks": 32, "num_speculative_tokens": 3, "speculation": "fixed"}
    scheduler = Scheduler.create(max_num_seqs=4, max_num_batched_tokens=32, **settings)
    for name, drafts in (("a", 3), ("b", 2), ("c", 0)):
        scheduler.submit(Request(id=name, prompt=range(10), max_tokens=9, drafts=drafts), now=0.0)
    plan = scheduler.plan(now=0.0)
    scheduler.commit(plan, StepResult.of(plan, {name: [1] for name in "abc"}), now=0.0)
    found = BatchSummary.of(scheduler.plan(now=0.0))
    assert found == BatchSummary.verifying([3, 2, 0], 11)
    assert (found.positions, found.samples, found.contexts) == (8, 8, 3 * 11 + 5)
    assert found.is_mixed
    assert not found.has_prompts


def test_a_chunk_attends_to_what_is_in_front_of_it() -> None:
    chunk = BatchSummary.prompt(4, 8)
    assert (chunk.pairs, chunk.deepest, chunk.longest) == (9 + 10 + 11 + 12, 12, 0)
