"""Who waits to be begun, in tokens and in seconds."""

import pytest

from paceline.core.errors import QueueFull
from paceline.core.request import Request
from paceline.engine.waiting_room import WaitingRoom


def request(name: str, tokens: int, n: int = 1) -> Request:
    return Request(id=name, prompt=[5] * tokens, n=n)  # pyright: ignore[reportArgumentType]


def test_tokens_are_those_of_requests_that_nobody_has_begun() -> None:
    room = WaitingRoom(10, 0.0)
    for name, tokens, n in (("a", 4, 1), ("b", 6, 3)):
        room.check(request(name, tokens))
        room.enter(request(name, tokens, n), 0.0)
    with pytest.raises(QueueFull, match=r"10 tokens .* 1 more .* max_queued_tokens 10"):
        room.check(request("c", 1))
    room.admitted("0_b")  # the first of three
    room.admitted("1_b")
    assert room.tokens == 4
    room.left("a")
    room.left("b")
    assert room.tokens == 0


def test_a_request_that_is_alone_may_be_as_long_as_it_likes() -> None:
    room = WaitingRoom(10, 0.0)
    room.check(request("a", 100))
    room.enter(request("a", 100), 0.0)
    with pytest.raises(QueueFull):
        room.check(request("b", 1))


def test_without_limits_nobody_is_refused_or_overdue() -> None:
    room = WaitingRoom(0, 0.0)
    room.enter(request("a", 100), 0.0)
    room.check(request("b", 100))
    assert list(room.overdue(1e9)) == []


def test_those_who_came_first_are_overdue_first() -> None:
    room = WaitingRoom(0, 2.0)
    for at, name in enumerate("abc"):
        room.enter(request(name, 1, n=at + 1), float(at))
    room.admitted("a")
    assert list(room.overdue(3.0)) == []
    assert list(room.overdue(3.5)) == ["b"]
    assert list(room.overdue(9.0)) == ["c"]
    assert room.tokens == 0
