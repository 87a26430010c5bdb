"""Plans in vLLM's form, and results of vLLM's workers."""

from typing import Any

import pytest

from paceline import Request
from paceline.core.errors import StepError
from paceline.core.settings.config import Config
from paceline.integrations.vllm.worker_steps import WorkerStep, WorkerSteps, Yielded


def make(**settings: Any) -> WorkerSteps:
    usual = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64}
    pool = {"num_blocks": 16, "block_size": 4, "free_order": "lru"}
    return WorkerSteps(Config.of(**usual | pool | settings))


def submit(steps: WorkerSteps, name: str, prompt: int, **fields: Any) -> None:
    fields.setdefault("max_tokens", 8)
    steps.scheduler.submit(Request(name, range(prompt), **fields), now=0.0)


def commit(steps: WorkerSteps, step: WorkerStep, **sampled: list[int]) -> Yielded:
    place = {name: row for row, name in enumerate(sampled)}
    return steps.commit(step, list(sampled.values()), place, now=0.0)


def test_a_request_is_new_once_and_then_grows() -> None:
    steps = make()
    submit(steps, "a", 4)
    first = steps.plan(0.0)
    assert [(one.id, one.blocks, one.computed) for one in first.new] == [("a", ([1],), 0)]
    assert first.tokens == {"a": 4}
    assert first.later.ids == []
    assert commit(steps, first, a=[7]).tokens == [[7]]
    second = steps.plan(0.0)
    assert second.new == []
    assert (second.later.ids, second.later.blocks) == (["a"], [([2],)])
    assert (second.later.computed, second.later.outputs) == ([4], [1])
    assert second.later.absent == []


def test_steps_of_a_steady_decode_share_what_names_their_rows() -> None:
    steps = make(block_size=16, num_blocks=4)
    submit(steps, "a", 4)
    for _ in range(2):
        commit(steps, steps.plan(0.0), a=[7])
    one = steps.plan(0.0)
    commit(steps, one, a=[7])
    other = steps.plan(0.0)
    assert other.tokens is one.tokens
    assert other.later.ids is one.later.ids
    assert other.later.blocks == [None]
    assert other.later.computed == [6]


def test_outputs_count_tokens_that_are_still_sampled() -> None:
    steps = make()
    submit(steps, "a", 4)
    first, second = steps.plan(0.0), steps.plan(0.0)
    third = steps.plan(0.0)
    assert [step.later.outputs for step in (first, second, third)] == [[], [1], [2]]
    assert [step.later.computed for step in (first, second, third)] == [[], [4], [5]]
    assert [commit(steps, step, a=[7]).tokens for step in (first, second, third)] == [[[7]]] * 3


def test_a_preempted_request_resumes_with_all_its_blocks() -> None:
    steps = make(num_blocks=4, max_num_seqs=2, enable_prefix_caching=False)
    submit(steps, "a", 7)
    submit(steps, "b", 7, max_tokens=4)
    commit(steps, steps.plan(0.0), a=[1], b=[2])
    commit(steps, steps.plan(0.0), a=[3], b=[4])
    squeezed = steps.plan(0.0)
    assert squeezed.plan.preempted == ("b",)
    commit(steps, squeezed, a=[5])
    steps.abort("a", 0.0)
    resumed = steps.plan(0.0)
    assert resumed.finished == {"a"}
    assert resumed.new == []
    assert resumed.later.ids == resumed.later.absent == ["b"]
    assert resumed.later.resumed == {"b"}
    assert resumed.tokens == {"b": 9}
    (blocks,) = resumed.later.blocks
    assert blocks is not None
    assert len(blocks[0]) == 3
    assert (resumed.later.computed, resumed.later.outputs) == ([0], [2])


def test_a_request_without_a_row_in_the_previous_step_is_absent() -> None:
    steps = make(max_num_batched_tokens=4, max_num_seqs=2)
    submit(steps, "a", 4)
    commit(steps, steps.plan(0.0), a=[7])
    steps.scheduler.pause("all")
    assert steps.plan(0.0).tokens == {}
    steps.scheduler.resume()
    assert steps.plan(0.0).later.absent == ["a"]


def test_drafts_are_verified_as_far_as_they_were_proposed() -> None:
    steps = make(num_speculative_tokens=3, speculation="fixed")
    submit(steps, "a", 4, max_tokens=16)
    submit(steps, "b", 4, max_tokens=16)
    commit(steps, steps.plan(0.0), a=[7], b=[8])
    steps.propose("a", [1, 2])
    step = steps.plan(0.0)
    assert step.tokens == {"a": 3, "b": 1}
    assert step.drafts == {"a": [1, 2]}
    yielded = commit(steps, step, a=[1, 9], b=[3])
    assert (yielded.tokens, yielded.verified) == ([[1, 9], [3]], [(2, 1)])
    assert steps.scheduler.stats.drafted == 2
    after = steps.plan(0.0)
    assert after.later.computed == [6, 5]
    assert after.drafts == {}, "a proposal is for one step"


def test_drafts_beyond_the_limit_of_a_request_are_left_out() -> None:
    steps = make(num_speculative_tokens=3, speculation="fixed")
    submit(steps, "a", 4, max_tokens=3)
    commit(steps, steps.plan(0.0), a=[7])
    steps.propose("a", [1, 2, 3])
    assert steps.plan(0.0).drafts == {"a": [1]}


def test_tokens_behind_a_stop_are_cut_and_the_end_is_reported() -> None:
    steps = make(num_speculative_tokens=2, speculation="fixed")
    submit(steps, "a", 4, stop_token_ids=(42,))
    commit(steps, steps.plan(0.0), a=[7])
    steps.propose("a", [1, 42])
    yielded = commit(steps, steps.plan(0.0), a=[1, 42, 5])
    assert yielded.tokens == [[1, 42]]
    assert [(end.request_id, end.stop_token) for end in yielded.ended] == [("a", 42)]
    assert yielded.last == [[*range(4), 7, 1, 42]]
    assert steps.finished == {"a"}
    assert steps.plan(0.0).finished == {"a"}
    assert steps.finished == set()


@pytest.mark.parametrize("depth", [1, 2])
def test_results_of_a_request_that_was_aborted_are_dropped(depth: int) -> None:
    steps = make()
    submit(steps, "a", 4)
    submit(steps, "b", 4)
    flight = [steps.plan(0.0) for _ in range(depth)]
    steps.abort("a", 0.0)
    for step in flight:
        yielded = commit(steps, step, a=[1], b=[2])
        assert (yielded.ids, yielded.tokens, yielded.ended) == (["b"], [[2]], ())
    assert (steps.running, steps.waiting) == (1, 0)


def test_rows_that_compute_part_of_a_prompt_yield_nothing() -> None:
    steps = make(max_num_batched_tokens=4)
    submit(steps, "a", 6)
    yielded = commit(steps, steps.plan(0.0), a=[])
    assert (yielded.ids, yielded.tokens) == ([], [])
    assert commit(steps, steps.plan(0.0), a=[5]).tokens == [[5]]


@pytest.mark.parametrize("sampled", [[], [1, 2]])
def test_a_row_that_samples_must_have_one_token(sampled: list[int]) -> None:
    steps = make()
    submit(steps, "a", 4)
    with pytest.raises(StepError, match="the result of 'a' has"):
        commit(steps, steps.plan(0.0), a=sampled)


def test_known_tokens_are_those_of_running_and_of_waiting_requests() -> None:
    steps = make(max_num_seqs=1)
    submit(steps, "a", 3)
    submit(steps, "b", 2)
    commit(steps, steps.plan(0.0), a=[7])
    view = steps.scheduler.view
    assert [view.known_tokens(name).tolist() for name in "ab"] == [[0, 1, 2, 7], [0, 1]]


def test_an_empty_step_reports_what_ended_meanwhile() -> None:
    steps = make(queue_timeout_s=1.0, max_num_seqs=1)
    submit(steps, "a", 4)
    commit(steps, steps.plan(0.0), a=[1])
    submit(steps, "b", 4)
    steps.abort("a", 0.0)
    steps.scheduler.pause("new")
    step = steps.plan(5.0)
    assert step.tokens == {}
    yielded = commit(steps, step)
    assert [(end.request_id, end.finish.value) for end in yielded.ended] == [("b", "timeout")]
