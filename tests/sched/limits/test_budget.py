"""The budget of a step, for residents and for an arrival."""

from paceline.sched.limits.budget import Budget
from tests.sched.limits.support import View, arrival, config, residents


def test_rows_are_served_in_order_until_the_budget_is_spent() -> None:
    limit = Budget.create(config(), View())
    assert limit.clip(residents(3, 4, 3, left=5)).tolist() == [3, 2, 0]
    assert limit.clip(arrival(4, left=3)).tolist() == [3]
    assert limit.clip(arrival(4, left=0)).tolist() == [0]
