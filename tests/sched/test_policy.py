"""Policies by name and by dotted path."""

import pytest

from paceline import ConfigError
from paceline.core.request import Sequence
from paceline.sched.policy import Policy
from tests.sched.support import ask, small, step


class NewestFirst(Policy):
    """A policy of one's own."""

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (-sequence.serial,)


def test_a_policy_of_ones_own_is_found_by_its_path() -> None:
    scheduler = small(policy=f"{__name__}.{NewestFirst.__name__}", max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 5), 0.0)
    assert scheduler.snapshot()["waiting"] == ["c", "b", "a"]
    assert step(scheduler)["new"] == ["c"]


def test_a_policy_must_be_one() -> None:
    with pytest.raises(ConfigError, match="not a subclass of Policy"):
        small(policy="paceline.core.request.Request")
