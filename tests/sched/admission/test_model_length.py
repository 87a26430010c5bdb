"""The last position that is worth computing."""

from paceline.sched.admission.limits import ModelLength
from tests.sched.admission.limit_support import View, arrival, config, residents


def test_the_last_position_computed_is_the_one_whose_sample_reaches_the_limit() -> None:
    limit = ModelLength.create(config(), View())
    rows = residents(5, 5, 5, start=(2, 6, 9), limit=10)
    assert limit.clip(rows).tolist() == [5, 3, 0]
    assert limit.clip(arrival(5, start=6, limit=10)).tolist() == [3]


def test_a_row_past_its_limit_gets_nothing_rather_than_less_than_nothing() -> None:
    limit = ModelLength.create(config(), View())
    assert limit.clip(residents(3, start=(12,), limit=10)).tolist() == [0]
