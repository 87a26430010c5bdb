"""Which of several engines gets a request."""

from random import Random

import numpy as np
import pytest

from paceline.core.errors import QueueFull, RequestError
from paceline.core.request import Request
from paceline.engine.loop.messages import Capacity
from paceline.engine.replicas.router import Router

CAPACITY = Capacity(4096, 16, 1000, 8, 100, engines=2)


def request(tokens: int) -> Request:
    return Request("a", np.arange(tokens, dtype=np.int32), max_tokens=1)


def test_the_load_of_a_request_is_what_its_engine_lacks() -> None:
    router = Router(CAPACITY, Random(0))
    first, second = (router.route(request(1024)) for _ in range(2))
    for one in (first, second):
        router.place(one, 1)
    assert (first.load, second.load) == (2.0, 1.0)
    assert router.choose(router.route(request(1024)), [0, 1]) == 1
    router.forget(1)
    assert router.choose(router.route(request(1024)), [0, 1]) == 0
    for one in (first, second):
        router.leave(one)
    assert router.loads == pytest.approx([0, 0])


def test_a_request_turns_to_another_engine_once() -> None:
    route = Router(CAPACITY).route(request(10))
    assert not route.turns(RequestError("it is too long"))
    assert route.turns(QueueFull("the queue is full"))
    assert not route.turns(QueueFull("the queue is full"))
