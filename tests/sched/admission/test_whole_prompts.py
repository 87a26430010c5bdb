"""Prompts that are not cut."""

from paceline.sched.admission.limits import WholePrompts
from tests.sched.admission.limit_support import View, arrival, config, residents
from tests.sched.support import ask, small, tokens_of_steps


def test_an_arrival_joins_with_its_whole_prompt_or_not_at_all() -> None:
    limit = WholePrompts.create(config(enable_chunked_prefill=False), View())
    assert limit is not None
    assert limit.clip(arrival(5, left=5)).tolist() == [5]
    assert limit.clip(arrival(5, left=4)).tolist() == [0]


def test_what_a_resident_lacks_may_be_cut() -> None:
    limit = WholePrompts.create(config(enable_chunked_prefill=False), View())
    assert limit is not None
    assert limit.clip(residents(5, 1, left=4)).tolist() == [5, 1]


def test_with_chunks_there_is_no_limit() -> None:
    assert WholePrompts.create(config(enable_chunked_prefill=True), View()) is None


def test_without_chunks_a_long_head_stops_those_behind_it() -> None:
    """Edge case 33: Head-of-line blocking is meant: the long one would otherwise never get in."""
    scheduler = small(enable_chunked_prefill=False, max_num_batched_tokens=64, num_blocks=64)
    for name, length in (("a", 40), ("long", 40), ("short", 3)):
        scheduler.submit(ask(name, length, max_tokens=2), 0.0)
    assert tokens_of_steps(scheduler, 2) == [{"a": 40}, {"a": 1, "long": 40, "short": 3}]
