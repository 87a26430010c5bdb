"""The inbox: in order, bounded in requests, and never asleep with a message in it."""

from threading import Thread

import pytest

from paceline.core.errors import QueueFull
from paceline.core.request import Request
from paceline.engine.core.inbox import Inbox
from paceline.engine.core.messages import Abort, Submit


def submit(name: str) -> Submit:
    return Submit(Request(id=name, prompt=[1]))  # pyright: ignore[reportArgumentType]


def test_messages_come_out_once_in_the_order_they_came() -> None:
    inbox, one, other = Inbox(2), submit("a"), submit("b")
    for message in (one, Abort("a"), other):
        inbox.put(message)
    assert inbox
    assert inbox.room == 0
    assert inbox.drain() == [one, Abort("a"), other]
    assert not inbox
    assert inbox.drain() == []
    assert inbox.room == 2


def test_only_requests_are_bounded() -> None:
    inbox = Inbox(1)
    inbox.put(submit("a"))
    inbox.put(Abort("a"))
    with pytest.raises(QueueFull):
        inbox.put(submit("b"))
    assert len(inbox.drain()) == 2


def test_a_wait_ends_with_a_message_a_nudge_or_in_time() -> None:
    inbox = Inbox(1)
    inbox.wait(0.0)
    inbox.nudge()
    inbox.wait(None)  # a nudge from before counts
    inbox.put(Abort("a"))
    inbox.wait(None)
    inbox.drain()
    for wake in (inbox.nudge, lambda: inbox.put(Abort("a"))):
        sleeper = Thread(target=inbox.wait, args=(None,), daemon=True)
        sleeper.start()
        wake()
        sleeper.join(30)
        assert not sleeper.is_alive()
