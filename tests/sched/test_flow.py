"""A flow gives its positions back in order, however they came."""

from random import Random

import numpy as np
import pytest

from paceline.core.request import Sequence
from paceline.sched.queue import Flow, Order, QueuePosition
from tests.sched.support import ask


def position(rank: float, serial: int, front: int = 0) -> QueuePosition:
    sequence = Sequence(ask(str(serial), 1), serial, 9, 0.0, np.zeros(1, np.int32))
    order: Order = (rank,), front, (), serial
    return QueuePosition(order, sequence, None)


def drain(flow: Flow) -> list[QueuePosition]:
    found: list[QueuePosition] = []
    while flow:
        found.append(flow.first)
        flow.pop()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_first_is_always_at_hand(seed: int) -> None:
    random, flow = Random(seed), Flow()
    inside: list[QueuePosition] = []
    for serial in range(200):
        if inside and random.random() < 0.4:
            first = min(inside, key=lambda one: one.order)
            assert flow.first is first
            flow.pop()
            inside.remove(first)
        else:
            new = position(
                random.choice([0.0, float(serial), random.random()]), serial, -(serial % 3)
            )
            flow.push(new)
            inside.append(new)
        assert len(flow) == len(inside)
        assert {id(one) for one in flow} == {id(one) for one in inside}
    assert drain(flow) == sorted(inside, key=lambda one: one.order)


def test_who_comes_before_the_last_of_the_row_is_put_in_front_of_it() -> None:
    flow = Flow()
    late, early, again = position(5.0, 0), position(1.0, 1), position(5.0, 0)
    for one in (late, early, again):
        flow.push(one)
    assert [one.order for one in drain(flow)] == [early.order, late.order, again.order]


def test_two_places_of_a_sequence_are_not_compared() -> None:
    flow = Flow()
    for one in (position(9.0, 9), position(1.0, 1), position(1.0, 1)):
        flow.push(one)
    assert [one.sequence.serial for one in drain(flow)] == [1, 1, 9]
