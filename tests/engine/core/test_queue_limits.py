"""Who waits to be begun, in tokens and in seconds."""

from typing import Any

import pytest

from paceline.core.errors import QueueFull
from paceline.core.request import Finish, Request
from paceline.engine.core.engine import Engine
from paceline.engine.core.messages import Question
from paceline.engine.core.queue_limits import WaitingRoom
from paceline.engine.settings import EngineSettings
from tests.engine.support import MAX_MODEL_LEN, parts


def request(name: str, tokens: int, n: int = 1) -> Request:
    return Request(id=name, prompt=[5] * tokens, n=n)  # pyright: ignore[reportArgumentType]


def test_tokens_are_those_of_requests_that_nobody_has_begun() -> None:
    room = WaitingRoom(10, 0.0)
    for name, tokens, n in (("a", 4, 1), ("b", 6, 3)):
        room.check(request(name, tokens))
        room.enter(request(name, tokens, n), 0.0)
    with pytest.raises(QueueFull, match=r"10 tokens .* 1 more .* max_queued_tokens 10"):
        room.check(request("c", 1))
    room.left("b")
    room.left("b")  # the next of three
    assert room.tokens == 4
    room.left("a")
    assert room.tokens == 0


def test_names_that_look_like_those_of_sequences_are_names() -> None:
    room = WaitingRoom(0, 5.0)
    for name in ("x", "0_x"):
        room.enter(request(name, 4), 0.0)
    room.left("x")
    assert room.tokens == 4
    assert list(room.overdue(6.0)) == ["0_x"]


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
    room.left("a")
    assert list(room.overdue(3.0)) == []
    assert list(room.overdue(3.5)) == ["b"]
    assert list(room.overdue(9.0)) == ["c"]
    assert room.tokens == 0


class Late:
    """An engine whose clock is set by hand."""

    def __init__(self, limits: EngineSettings, **settings: Any) -> None:
        self.now, made = 0.0, parts(**settings)
        self.engine = Engine(made.scheduler, made.runner, clock=lambda: self.now, settings=limits)

    @property
    def here(self) -> set[str]:
        return set(self.engine.scheduler.view.live_ids())


def test_one_that_is_refused_in_the_queue_leaves_the_room() -> None:
    refusing = {"policy": "deadline", "refuse_late": True, "max_num_seqs": 1}
    late = Late(EngineSettings(max_queued_tokens=100), **refusing)
    late.engine.submit(Request(id="a", prompt=[5] * 4, max_tokens=50, ignore_eos=True))
    late.engine.turn()
    late.engine.submit(Request(id="late", prompt=[5] * 4, max_tokens=5, deadline=1.0))
    late.engine.turn()
    assert late.engine._room.tokens == 4
    late.now = 2.0
    late.engine.turn()
    late.engine.turn()
    assert "late" not in late.here
    assert late.engine._room.tokens == 0


def test_a_family_that_lost_its_first_child_is_begun_with_the_next() -> None:
    late = Late(EngineSettings(queue_timeout_s=5.0))
    late.engine.submit(Request(id="f", prompt=[5] * 4, max_tokens=40, n=2, ignore_eos=True))
    late.engine.abort("f", 0)
    late.engine.turn()
    assert late.engine._room.tokens == 0
    late.now = 6.0
    late.engine.turn()
    assert "f" in late.here


def test_one_that_is_refused_does_not_enter() -> None:
    late = Late(EngineSettings(max_queued_tokens=100))
    late.engine.submit(request("long", MAX_MODEL_LEN))
    assert late.engine.turn() is not None
    assert late.engine._room.tokens == 0


def test_the_last_one_to_wait_is_told_that_it_waited_too_long() -> None:
    late = Late(EngineSettings(queue_timeout_s=5.0))
    late.engine.answer(Question("pause", "all"))
    late.engine.submit(request("a", 4))
    late.engine.turn()
    late.now = 6.0
    told = late.engine.turn()
    assert told is not None
    assert [one.finish for one in told.ended] == [Finish.TIMEOUT]
