"""The inbox: in order, bounded in requests, and never asleep with a message in it."""

from threading import Thread

import pytest

from paceline.core.errors import QueueFull
from paceline.core.request import Request
from paceline.engine.loop.messages import Abort, Inbox, Submit


def submit(name: str) -> Submit:
    request = Request(id=name, prompt=[1])  # pyright: ignore[reportArgumentType]
    return Submit(lambda: request)


def test_messages_come_out_once_in_the_order_they_came() -> None:
    inbox, one, other = Inbox(2), submit("a"), submit("b")
    for message in (one, Abort("a"), other):
        inbox.put(message)
    assert inbox
    assert inbox.requests == 2
    assert inbox.drain() == [one, Abort("a"), other]
    assert not inbox
    assert inbox.drain() == []
    assert inbox.requests == 0


def test_a_part_of_the_messages_ends_with_its_last_request() -> None:
    inbox, requests = Inbox(9), [submit(name) for name in "abc"]
    messages = [Abort("x"), requests[0], Abort("a"), requests[1], Abort("b"), requests[2]]
    for message in messages:
        inbox.put(message)
    assert inbox.drain(2) == messages[:4]
    assert inbox.requests == 1
    assert inbox.drain(1) == messages[4:]
    assert not inbox
    assert inbox.requests == 0


def test_only_requests_are_bounded() -> None:
    inbox = Inbox(1)
    inbox.put(submit("a"))
    inbox.put(Abort("a"))
    with pytest.raises(QueueFull):
        inbox.put(submit("b"))
    assert len(inbox.drain()) == 2


def test_a_wait_ends_with_a_message_or_in_time() -> None:
    inbox = Inbox(1)
    inbox.wait(0.0)
    inbox.put(Abort("a"))
    inbox.wait(None)  # a message from before counts
    inbox.drain()
    sleeper = Thread(target=inbox.wait, args=(None,), daemon=True)
    sleeper.start()
    inbox.put(Abort("a"))
    sleeper.join(30)
    assert not sleeper.is_alive()
