"""The longest row."""

from paceline import Scheduler
from paceline.sched.admission.limits import LongPrefill
from tests.sched.admission.limit_support import View, arrival, config, residents
from tests.sched.support import ask, tokens_of_steps


def test_only_longer_rows_are_cut() -> None:
    limit = LongPrefill.create(config(long_prefill_token_threshold=4), View())
    assert limit is not None
    assert limit.clip(residents(1, 4, 5, 900)).tolist() == [1, 4, 4, 4]
    assert limit.clip(arrival(5)).tolist() == [4]


def test_a_threshold_of_zero_is_no_limit() -> None:
    assert LongPrefill.create(config(long_prefill_token_threshold=0), View()) is None


def test_the_long_prefill_threshold_holds_for_all_and_before_the_budget() -> None:
    """Edge case 34: Three prompts of 800 with a budget of 1,024 and at most 400 each."""
    scheduler = Scheduler.create(
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        max_model_len=2048,
        num_blocks=400,
        block_size=16,
        long_prefill_token_threshold=400,
    )
    for name in "abc":
        scheduler.submit(ask(name, 800, max_tokens=10), 0.0)
    assert [list(tokens.values()) for tokens in tokens_of_steps(scheduler, 3)] == [
        [400, 400, 224],
        [400, 400, 224],
        [1, 1, 352],
    ]
