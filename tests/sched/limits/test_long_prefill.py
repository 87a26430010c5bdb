"""The longest row."""

from paceline.sched.limits.long_prefill import LongPrefill
from tests.sched.limits.support import View, arrival, config, residents


def test_only_longer_rows_are_cut() -> None:
    limit = LongPrefill.create(config(long_prefill_token_threshold=4), View())
    assert limit is not None
    assert limit.clip(residents(1, 4, 5, 900)).tolist() == [1, 4, 4, 4]
    assert limit.clip(arrival(5)).tolist() == [4]


def test_a_threshold_of_zero_is_no_limit() -> None:
    assert LongPrefill.create(config(long_prefill_token_threshold=0), View()) is None
