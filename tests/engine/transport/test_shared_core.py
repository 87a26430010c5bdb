"""One core for several front ends: who gets what, and what becomes of requests of one that left."""

from time import monotonic, sleep
from typing import Any

import numpy as np

from paceline.core.request import Finish, Request
from paceline.engine.choice_rows import FRONT_END_SHIFT
from paceline.engine.loop.figures import NO_REQUESTS
from paceline.engine.loop.messages import Abort, Delivery, Park, Question, Wake
from paceline.engine.transport import wire
from paceline.engine.transport.front_end_link import CoreDeath, CoreHealth, PeerAnswer, PeerQuestion
from paceline.engine.transport.shared_core import SharedCore
from paceline.engine.transport.thread import ThreadCore
from tests.engine.support import components
from tests.engine.transport.test_peer_questions import SentMessages

PATIENCE_S = 30.0


class TwoFrontEnds:
    """A real engine on a thread, and what it sends to each of two front ends."""

    def __init__(self) -> None:
        self.figures = np.zeros(2)
        self.gone: list[str] = []
        self.engine = components().engine()
        self.core = ThreadCore(self.engine)
        self.shared = SharedCore(self.core, self.figures, self.gone.append)
        self.links = [SentMessages(5), SentMessages(9)]
        for link in self.links:
            self.shared.join(link)  # type: ignore[arg-type]

    def serve(self, which: int, message: Any) -> None:
        self.shared.serve(self.links[which], message)  # type: ignore[arg-type]

    def submit(self, which: int, name: str, tokens: int = 3, parked: str = "") -> None:
        handle = self.links[which].number << FRONT_END_SHIFT
        request = Request(id=name, prompt=[3, 4], max_tokens=tokens, ignore_eos=True, handle=handle)
        self.serve(which, wire.EncodedRequest.of(request, parked))

    def deliveries(self, which: int) -> list[Delivery]:
        sent = [one for one in self.links[which].sent if isinstance(one, wire.EncodedDelivery)]
        return [wire.decode_delivery(one) for one in sent]

    def ends(self, which: int) -> dict[str, Finish]:
        found = (one for delivery in self.deliveries(which) for one in delivery.ended)
        return {one.request_id: one.finish for one in found}

    def until(self, reached: Any) -> None:
        give_up = monotonic() + PATIENCE_S
        while not reached():
            assert monotonic() < give_up
            sleep(0.001)


def test_each_front_end_gets_the_tokens_and_the_ends_of_its_own_requests() -> None:
    both = TwoFrontEnds()
    both.submit(0, "a")
    both.submit(1, "b", tokens=5)
    both.until(lambda: both.ends(0) and both.ends(1))
    assert both.ends(0) == {"a": Finish.LENGTH}
    assert both.ends(1) == {"b": Finish.LENGTH}
    for which, tokens in ((0, 3), (1, 5)):
        assert sum(int(one.count.sum()) for one in both.deliveries(which)) == tokens
        handles = {int(one) for each in both.deliveries(which) for one in each.handle}
        assert handles == {both.links[which].number << FRONT_END_SHIFT}
    assert both.figures.tolist() == [0.0, 0.0]
    both.core.close()


def test_an_id_of_another_front_end_is_refused_and_cannot_be_aborted() -> None:
    both = TwoFrontEnds()
    both.submit(0, "a", parked="grammar")
    both.submit(1, "a")
    (delivery,) = both.deliveries(1)
    assert "already open" in str(delivery.refused[0].error)
    for command in (Abort("a"), Park("a", "x"), Wake("a")):
        kind = {Abort: wire.AbortMessage, Park: wire.ParkMessage, Wake: wire.WakeMessage}
        both.serve(1, kind[type(command)](command))
    assert both.figures[0] == 1
    both.serve(0, wire.WakeMessage(Wake("a")))
    both.until(lambda: both.ends(0) == {"a": Finish.LENGTH})
    both.submit(1, "a")
    both.until(lambda: both.ends(1) == {"a": Finish.LENGTH})
    both.core.close()


def test_requests_of_a_front_end_that_left_are_aborted() -> None:
    both = TwoFrontEnds()
    both.submit(0, "left", parked="grammar")
    both.submit(1, "stays", parked="grammar")
    both.shared.leave(both.links[0])  # type: ignore[arg-type]
    both.until(lambda: both.figures[0] == 1)
    assert both.ends(0) == both.ends(1) == {}
    both.serve(1, wire.AbortMessage(Abort("stays")))
    both.until(lambda: both.ends(1) == {"stays": Finish.ABORT})
    both.core.close()


def test_questions_are_answered_and_a_front_end_drains_alone() -> None:
    both = TwoFrontEnds()
    for number, verb in enumerate(("drain", "paused", "explain")):
        both.serve(0, wire.NumberedQuestion(number, Question(verb, "none")))
    both.until(lambda: len(both.links[0].sent) == 4)
    answers = {one.number: one for one in both.links[0].sent if hasattr(one, "number")}
    assert (answers[0].value, answers[1].value) == (None, "")
    assert answers[2].fault.kind == "RequestError"
    both.submit(1, "a")
    both.until(lambda: both.ends(1) == {"a": Finish.LENGTH})
    both.core.close()


def test_every_front_end_learns_of_a_death_and_of_the_health() -> None:
    both = TwoFrontEnds()
    both.submit(0, "a", parked="grammar")
    both.core._die("it broke")
    both.shared.died("it broke", for_good=True)
    both.submit(1, "b")
    for link in both.links:
        assert link.sent[:2] == [
            CoreHealth("", ("",)),
            CoreDeath("it broke", CoreHealth("it broke", ("it broke",))),
        ]
    assert "it broke" in str(both.deliveries(1)[0].refused[0].error)
    assert (both.figures.tolist(), both.gone) == ([0.0, 1.0], ["it broke"])
    both.shared.check_health()
    assert len(both.links[0].sent) == 2, "nothing has changed"
    both.serve(0, wire.NumberedQuestion(1, Question("paused")))
    assert both.links[0].sent[-1].fault.kind == "EngineFailed"
    both.core.close()
    both.core._death = ""
    both.shared.check_health()
    assert both.links[0].sent[-1] == CoreHealth(
        "the engine is shut down", ("the engine is shut down",)
    )


def test_without_a_core_every_front_end_gets_the_latest_figures() -> None:
    both = TwoFrontEnds()
    both.submit(0, "a")
    both.until(lambda: both.ends(0))
    gauges = wire.NumberedQuestion(1, Question("gauges"))
    both.serve(0, gauges)
    both.until(lambda: isinstance(both.links[0].sent[-1], wire.NumberedAnswer))
    latest = both.links[0].sent[-1].value
    assert latest["pid"]
    both.core._die("it broke")
    both.serve(1, gauges)
    assert both.links[1].sent[-1].value == latest | NO_REQUESTS
    both.core.close()


def test_a_front_end_that_leaves_while_it_is_asked_is_not_waited_for() -> None:
    both = TwoFrontEnds()

    class LeavingLink(SentMessages):
        @property
        def is_ready(self) -> bool:  # the last look at it before the question
            both.shared.leave(self)  # type: ignore[arg-type]
            return True

    both.shared.join(LeavingLink(7))  # type: ignore[arg-type]
    both.serve(0, PeerQuestion(3, "abort", ("a",)))
    (question,) = (one for one in both.links[1].sent if isinstance(one, PeerQuestion))
    both.serve(1, PeerAnswer(question.number, ["a"]))
    assert both.links[0].sent[-1] == wire.NumberedAnswer(3, [["a"]])
    both.core.close()
