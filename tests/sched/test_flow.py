"""A flow gives its places back in order, however they came."""

from random import Random

import numpy as np
import pytest

from paceline.core.request import Sequence
from paceline.sched.queue import Flow, Order, Place
from tests.sched.support import ask


def place(rank: float, serial: int, front: int = 0) -> Place:
    sequence = Sequence(ask(str(serial), 1), serial, 9, 0.0, np.zeros(1, np.int32))
    order: Order = (rank,), front, (), serial
    return Place(order, sequence, None)


def drain(flow: Flow) -> list[Place]:
    found: list[Place] = []
    while flow:
        found.append(flow.first)
        flow.pop()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_first_is_always_at_hand(seed: int) -> None:
    random, flow = Random(seed), Flow()
    inside: list[Place] = []
    for serial in range(200):
        if inside and random.random() < 0.4:
            first = min(inside, key=lambda one: one.order)
            assert flow.first is first
            flow.pop()
            inside.remove(first)
        else:
            new = place(random.choice([0.0, float(serial), random.random()]), serial, -(serial % 3))
            flow.push(new)
            inside.append(new)
        assert len(flow) == len(inside)
        assert {id(one) for one in flow} == {id(one) for one in inside}
    assert drain(flow) == sorted(inside, key=lambda one: one.order)


def test_who_comes_before_the_last_of_the_row_is_put_in_front_of_it() -> None:
    flow = Flow()
    late, early, again = place(5.0, 0), place(1.0, 1), place(5.0, 0)
    for one in (late, early, again):
        flow.push(one)
    assert [one.order for one in drain(flow)] == [early.order, late.order, again.order]


def test_two_places_of_a_sequence_are_not_compared() -> None:
    flow = Flow()
    for one in (place(9.0, 9), place(1.0, 1), place(1.0, 1)):
        flow.push(one)
    assert [one.sequence.serial for one in drain(flow)] == [1, 1, 9]
