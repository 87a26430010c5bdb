"""The budget as the policy splits it."""

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.sched.admission.limits import PolicyShare
from tests.sched.admission.limit_support import View, arrival, config, residents


class LastFirst:
    """Serves residents in reverse order."""

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        granted = np.zeros_like(want)
        granted[-1] = min(int(want[-1]), budget)
        return granted


def test_the_policy_shares_the_budget_among_residents() -> None:
    view = View()
    view.policy = LastFirst()
    limit = PolicyShare.create(config(), view)
    assert limit.clip(residents(3, 4, 5, left=4)).tolist() == [0, 0, 4]


def test_an_arrival_gets_what_is_left_for_it() -> None:
    view = View()
    view.policy = LastFirst()
    limit = PolicyShare.create(config(), view)
    assert limit.clip(arrival(5, left=4)).tolist() == [4]
