"""A policy that answers nonsense: every request is still reported once, with the policy's name."""

import pytest

from paceline.core.arrays import I32, Index
from paceline.core.request import Finish, Sequence
from paceline.engine.loop.messages import EngineFailed
from paceline.sched.policy import Policy
from tests.engine.loop.test_engine import DEPTHS, Teller, request
from tests.engine.support import assert_nothing_left, components


class Nonsense(Policy):
    """Cannot rank requests called wrong, nor one that was parked, nor share a step with one called
    late."""

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        is_wrong = "wrong" in sequence.id or "parked" in sequence.id
        return (float("nan"),) if is_wrong else ()

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        names = [self.view.table.sequence(one).id for one in slot.tolist()]
        return want * 0 if "late" in names else super().share(slot, want, budget)


POLICY = f"{__name__}.Nonsense"


def test_a_request_that_cannot_be_ranked_is_refused_alone() -> None:
    teller = Teller(components(policy=POLICY))
    for name in ("a", "wrong", "b"):
        teller.engine.submit(request(name))
    teller.run()
    assert {name: finish for name, (finish, _) in teller.ends.items()} == {
        "a": Finish.LENGTH,
        "b": Finish.LENGTH,
    }
    assert isinstance(teller.refused["wrong"], EngineFailed)
    assert f"policy '{POLICY}': the rank of request 'wrong' is (nan,)" in str(
        teller.refused["wrong"]
    )
    assert teller.engine.broken == ""
    assert_nothing_left(teller.engine.scheduler)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_step_that_cannot_be_shared_stops_the_engine_and_loses_no_request(depth: int) -> None:
    teller = Teller(components(policy=POLICY, depth=depth, max_num_seqs=2))
    for name in "abcd":
        teller.engine.submit(request(name, most=20))
    for _ in range(6):
        teller.turn()
    teller.engine.submit(request("late", length=100))
    teller.engine.submit(request("parked"), parked="grammar")
    teller.run()
    problem = f"the engine has stopped: policy '{POLICY}': share gives nothing to"
    assert set(teller.ends) == {"a", "b", "c", "d", "late", "parked"}
    failed = [message for finish, message in teller.ends.values() if finish is Finish.ERROR]
    assert failed
    assert all(message.startswith(problem) for message in failed)
    assert teller.engine.broken.startswith(problem)
    with pytest.raises(EngineFailed, match="share gives nothing"):
        teller.engine.submit(request("e"))
    assert_nothing_left(teller.engine.scheduler)


def test_a_request_that_cannot_be_ranked_when_it_wakes_stops_the_engine() -> None:
    teller = Teller(components(policy=POLICY))
    teller.engine.submit(request("a", most=100))
    teller.engine.submit(request("parked"), parked="grammar")
    teller.turn()
    teller.engine.wake("parked")
    teller.run()
    assert {finish for finish, _ in teller.ends.values()} == {Finish.ERROR}
    assert set(teller.ends) == {"a", "parked"}
    assert "the rank of request 'parked' is (nan,)" in teller.engine.broken
