"""What a step is made of."""

from paceline import Request, Scheduler, StepResult
from paceline.simulate.batch_summary import BatchSummary


def test_of_a_plan() -> None:
    scheduler = Scheduler.create(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=32)
    scheduler.submit(Request(id="a", prompt=range(10), max_tokens=4), now=0.0)
    plan = scheduler.plan(now=0.0)
    prompt = BatchSummary.of(plan)
    assert prompt == BatchSummary(1, 10, 1, 10, 10, pairs=55, has_prompts=True, admitted=1)
    scheduler.commit(plan, StepResult.of(plan, {"a": [1]}), now=0.0)
    assert BatchSummary.of(scheduler.plan(now=0.0)) == BatchSummary.decode(1, 11)


def test_a_chunk_attends_to_what_is_in_front_of_it() -> None:
    assert BatchSummary.prompt(4, 8).pairs == 9 + 10 + 11 + 12
