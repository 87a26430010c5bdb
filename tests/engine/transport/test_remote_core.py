"""A core of another process, as a front end sees it."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import zmq

from paceline.core.errors import ConfigError, RequestError
from paceline.core.request import Request
from paceline.engine.loop.messages import Abort, Capacity, Delivery, Park, Question, Wake
from paceline.engine.transport import wire
from paceline.engine.transport.front_end_link import (
    CoreDeath,
    CoreHealth,
    DrainFrontEnd,
    FrontEndBuild,
    FrontEndReady,
    PeerAnswer,
    PeerQuestion,
    from_front_end,
)
from paceline.engine.transport.remote_core import RemoteCore
from paceline.engine.transport.shared_core import NO_ROWS

CAPACITY = Capacity(512, 16, 32, 8, 64)
PATIENCE_S = 30.0


class Owner:
    """The other end of the sockets; it also receives what the front end is asked."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.context.linger = 0
        self._to, self._from = self.context.socket(zmq.PUSH), self.context.socket(zmq.PULL)
        self._to.connect(f"ipc://{folder}/in")
        self._from.connect(f"ipc://{folder}/out")
        self.seen: SimpleQueue[Any] = SimpleQueue()
        self.send(FrontEndBuild(3, CAPACITY, {"api_keys": ("k",)}))
        self.core = RemoteCore(f"ipc://{folder}")
        self.core.control = self
        self.core.start(self)

    def send(self, message: Any) -> None:
        self._to.send(wire.encoder.encode(message))

    def received(self) -> Any:
        assert self._from.poll(PATIENCE_S * 1000)
        return from_front_end.decode(self._from.recv())

    def deliver(self, delivery: Delivery) -> None:
        self.seen.put(delivery)

    def died(self, reason: str, for_good: bool) -> None:
        self.seen.put((reason, for_good))

    def drain(self, hurry: bool) -> None:
        self.seen.put(f"drain {hurry}")

    def answer(self, verb: str, names: tuple[str, ...]) -> Future[Any]:
        found: Future[Any] = Future()
        if verb == "parts":
            found.set_result([verb, *names])
        else:
            found.cancel()
        return found


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path)
    yield found
    found.core.close()
    found.core.abort("after its end")  # has no effect
    found.context.destroy()


def test_commands_reach_the_owner_of_the_core(owner: Owner) -> None:
    core = owner.core
    assert (core.ready(), core.build.settings) == (CAPACITY, {"api_keys": ["k"]})
    core.report_ready()
    core.report_ready(ConfigError("no"))
    core.submit(Request("a", [1, 2], 3), "grammar")
    core.abort("a", 1)
    core.park("a", "x")
    core.wake("a")
    assert owner.received() == FrontEndReady()
    assert owner.received().fault == wire.EncodedError("ConfigError", "no")
    submitted = owner.received()
    assert (submitted.request().id, submitted.parked) == ("a", "grammar")
    assert owner.received() == wire.AbortMessage(Abort("a", 1))
    assert owner.received() == wire.ParkMessage(Park("a", "x"))
    assert owner.received() == wire.WakeMessage(Wake("a"))


def test_questions_to_the_core_and_to_other_front_ends_are_answered(owner: Owner) -> None:
    asked = owner.core.ask(Question("explain", "a"))
    owner.send(wire.NumberedAnswer(owner.received().number, "its life"))
    assert asked.result(PATIENCE_S) == "its life"
    asked = owner.core.ask_peers("abort", ("a",))
    question = owner.received()
    assert (question.verb, question.names) == ("abort", ("a",))
    owner.send(wire.NumberedAnswer(question.number, fault=wire.EncodedError("RequestError", "no")))
    with pytest.raises(RequestError, match="no"):
        asked.result(PATIENCE_S)


def test_this_front_end_answers_others_and_drains(owner: Owner) -> None:
    owner.send(PeerQuestion(8, "parts", ("a",)))
    assert owner.received() == PeerAnswer(8, ["parts", "a"])
    owner.send(PeerQuestion(9, "abort_all", ()))
    assert owner.received() == PeerAnswer(9, None)
    for hurry in (False, True):
        owner.send(DrainFrontEnd(hurry))
        assert owner.seen.get(timeout=PATIENCE_S) == f"drain {hurry}"


def test_deliveries_and_the_health_of_the_core_arrive(owner: Owner) -> None:
    assert owner.core.healthy() is None
    owner.send(wire.encode_delivery(Delivery(4.5, *NO_ROWS)))
    assert owner.seen.get(timeout=PATIENCE_S).time == 4.5
    restarting = "it broke; it is being restarted"
    owner.send(CoreDeath("it broke", CoreHealth(restarting, (restarting,))))
    assert owner.seen.get(timeout=PATIENCE_S) == ("it broke", False)
    assert (owner.core.healthy(), *owner.core.troubles()) == (restarting, restarting)
    owner.send(CoreHealth("", ("",)))
    owner.send(DrainFrontEnd())
    owner.seen.get(timeout=PATIENCE_S)
    assert owner.core.healthy() is None
