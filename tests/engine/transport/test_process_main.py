"""The loop of a core process applies every message in its socket to the engine, in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

import pytest
import zmq

from paceline.core.errors import QueueFull, RequestError
from paceline.core.request import Request
from paceline.engine.loop.engine import ARRIVALS, Engine
from paceline.engine.loop.messages import Abort, Park, Question, Wake
from paceline.engine.settings import EngineSettings
from paceline.engine.transport import wire
from paceline.engine.transport.process_main import CoreLoop, Outbox
from tests.engine.support import components


class Parent:
    """The other ends of a core's sockets."""

    def __init__(self, commands: zmq.Socket[bytes], inbox: zmq.Socket[bytes], loop: CoreLoop):
        self._commands, self._inbox, self.loop = commands, inbox, loop

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._commands.send(wire.encoder.encode(message))

    def sent(self) -> list[Any]:
        """Messages of the core so far."""
        found: list[Any] = []
        while self._inbox.poll(20):
            found.append(wire.from_core.decode(self._inbox.recv()))
        return found

    def turn(self) -> None:
        self.loop.turn()

    def waiting(self) -> list[str]:
        return self.loop._engine.scheduler.snapshot()["waiting"]

    def run(self) -> tuple[list[Any], list[wire.EncodedDelivery]]:
        """Close the core after the messages sent so far; returns its answers and its deliveries."""
        self.send(wire.Close())
        assert self.loop.run() == ""
        found = self.sent()
        return (
            [one for one in found if isinstance(one, wire.NumberedAnswer)],
            [one for one in found if isinstance(one, wire.EncodedDelivery)],
        )


@contextmanager
def parent(**settings: Any) -> Iterator[Parent]:
    context: zmq.Context[Any] = zmq.Context()
    pairs: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
    for name in ("in", "out"):
        pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        pull.bind(f"inproc://{name}")
        push.connect(f"inproc://{name}")
        pairs.append((pull, push))
    (commands, to_core), (from_core, out) = pairs
    made = components()
    engine = Engine(made.scheduler, made.runner, settings=EngineSettings(**settings))
    try:
        yield Parent(to_core, from_core, CoreLoop(engine, commands, Outbox(out)))
    finally:
        context.destroy(linger=0)


def submitted(name: str, parked: str = "", tokens: int = 3) -> wire.EncodedRequest:
    asked = Request(name, [5, 6], max_tokens=tokens, ignore_eos=True, handle=ord(name[0]))  # pyright: ignore[reportArgumentType]
    return wire.EncodedRequest.of(asked, parked)


def test_all_messages_are_applied_in_order_before_a_turn() -> None:
    with parent() as one:
        one.send(
            submitted("a"),
            submitted("b", "grammar"),
            wire.NumberedQuestion(1, Question("snapshot")),
            wire.AbortMessage(Abort("a")),
            wire.WakeMessage(Wake("b")),
            wire.NumberedQuestion(2, Question("snapshot")),
            wire.ParkMessage(Park("b", "remote_kv")),
            wire.NumberedQuestion(3, Question("snapshot")),
        )
        answers, deliveries = one.run()
    assert [one.number for one in answers] == [1, 2, 3]
    assert [one.value["waiting"] for one in answers] == [["a"], ["b"], []]
    assert [one.value["parked"] for one in answers] == [{"b": "grammar"}, {}, {"b": "remote_kv"}]
    assert [end.request_id for delivery in deliveries for end in delivery.ended] == ["a"]


def test_a_question_that_has_no_answer_is_answered_with_its_error() -> None:
    with parent() as one:
        one.send(wire.NumberedQuestion(7, Question("explain", "unknown")))
        (answer,), _ = one.run()
    assert answer.number == 7
    assert isinstance(answer.fault.error(), RequestError)


def test_more_requests_than_an_inbox_holds_are_refused() -> None:
    with parent(inbox_requests=2) as one:
        one.send(*map(submitted, "abcd"))
        _, (delivery,) = one.run()
    refused = {each.request_id: each.fault.error() for each in delivery.refused}
    assert list(refused) == ["c", "d"]
    assert isinstance(refused["c"], QueueFull)
    assert "inbox_requests" in str(refused["c"])


def test_a_burst_does_not_hold_up_those_who_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.loop.engine.SHORT_TURN_S", 60.0)  # on a busy machine too
    names = [f"late{number}" for number in range(5 * ARRIVALS)]
    with parent() as one:
        one.send(*(submitted(f"early{number}", tokens=30) for number in range(8)))
        one.turn()
        one.send(*map(submitted, names), wire.AbortMessage(Abort(names[-1])))
        for turns in range(1, 5):
            one.turn()
            assert one.waiting() == names[: turns * ARRIVALS]
        one.send(wire.NumberedQuestion(1, Question("snapshot")))
        one.turn()
        answers, deliveries = one.run()
    assert answers[0].value["waiting"] == names[:-1]
    rows = [wire.decode_delivery(delivery).handle.tolist() for delivery in deliveries]
    assert rows == [[ord("e")] * 8] * 7  # one for each turn
    assert not [each for delivery in deliveries for each in delivery.refused]


def test_a_burst_beyond_the_bound_is_refused_while_others_run() -> None:
    with parent(inbox_requests=ARRIVALS + 1) as one:
        one.send(submitted("early", tokens=30))
        one.turn()
        one.send(*(submitted(f"late{number}") for number in range(ARRIVALS + 3)))
        one.turn()
        _, deliveries = one.run()
    refused = [each.request_id for delivery in deliveries for each in delivery.refused]
    assert refused == [f"late{ARRIVALS + 1}", f"late{ARRIVALS + 2}"]


def test_a_core_closes_at_once_in_the_middle_of_a_burst() -> None:
    with parent() as one:
        one.send(submitted("early", tokens=30))
        one.turn()
        one.send(*(submitted(f"late{number}") for number in range(2 * ARRIVALS)))
        _, deliveries = one.run()
    assert len(deliveries) == 2


def test_a_request_that_can_never_run_is_refused_and_others_run() -> None:
    long = Request(id="long", prompt=range(5, 1000), max_tokens=3)  # pyright: ignore[reportArgumentType]
    with parent() as one:
        one.send(wire.EncodedRequest.of(long), submitted("a"))
        _, deliveries = one.run()
    assert [each.request_id for delivery in deliveries for each in delivery.refused] == ["long"]
    handles = [wire.decode_delivery(delivery).handle for delivery in deliveries]
    assert {one for each in handles for one in each.tolist()} == {ord("a")}


def test_a_message_of_the_parent_needs_no_alarm() -> None:
    with parent() as one:
        one.loop._engine.call_for_messages(lambda: pytest.fail("rung"))
        one.send(*(submitted(str(number)) for number in range(50)), wire.AbortMessage(Abort("7")))
        _, deliveries = one.run()
    assert "7" in [end.request_id for delivery in deliveries for end in delivery.ended]


def test_a_message_from_another_thread_of_the_core_wakes_it() -> None:
    """Else this waits for a message of the parent, for ever."""
    with parent() as one:
        asked = Request("a", [5, 6], max_tokens=1, ignore_eos=True)  # pyright: ignore[reportArgumentType]
        Timer(0.01, one.loop._engine.submit, [asked]).start()
        while not (found := one.sent()):
            one.turn()
    assert [end.request_id for end in found[0].ended] == ["a"]
