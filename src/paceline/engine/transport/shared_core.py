"""One core for several front ends: each gets its part of what the core delivers."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Protocol, TypeVar

import numpy as np

from paceline.core.arrays import F64
from paceline.core.errors import PacelineError, RequestError
from paceline.core.plan import NO_OUTPUTS, Candidates
from paceline.engine.choice_rows import FRONT_END_SHIFT
from paceline.engine.loop.figures import NO_REQUESTS
from paceline.engine.loop.messages import Abort, Delivery, Park, Question, Refused, Wake
from paceline.engine.loop.ports import Core
from paceline.engine.transport import wire
from paceline.engine.transport.front_end_link import (
    CoreDeath,
    CoreHealth,
    FromFrontEnd,
    FrontEndLink,
    PeerAnswer,
    PeerQuestion,
    PeerQuestions,
    ToFrontEnd,
)


class ForwardingCore(Core, Protocol):
    """A core that also accepts requests of other processes as they arrive."""

    def forward(self, message: wire.EncodedRequest) -> None: ...


class RequestRecord(Protocol):
    """A record of one request."""

    @property
    def request_id(self) -> str: ...


R = TypeVar("R", bound=RequestRecord)


def split(delivery: Delivery, owners: Mapping[str, int]) -> dict[int, Delivery]:
    """The part of each front end that has one, by number.

    Rows go by their handle. Records of a request go by `owners`, the front end of each open
    request; a record of another request is dropped.
    """
    number = delivery.handle >> FRONT_END_SHIFT
    ended, refused = grouped(delivery.ended, owners), grouped(delivery.refused, owners)
    prompt, pooled = grouped(delivery.prompt, owners), grouped(delivery.pooled, owners)
    parts: dict[int, Delivery] = {}
    for one in {*np.unique(number).tolist(), *ended, *refused, *prompt, *pooled}:
        rows = np.flatnonzero(number == one)
        logprob, found = delivery.logprob, delivery.candidates
        parts[one] = Delivery(
            delivery.time,
            delivery.handle[rows],
            delivery.ids[rows],
            delivery.count[rows],
            None if logprob is None else logprob[rows],
            None if found is None else Candidates(found.ids[rows], found.logprob[rows]),
            tuple(ended.get(one, ())),
            tuple(refused.get(one, ())),
            tuple(prompt.get(one, ())),
            tuple(pooled.get(one, ())),
            delivery.engine,
        )
    return parts


def grouped(records: Sequence[R], owners: Mapping[str, int]) -> dict[int, list[R]]:
    found: dict[int, list[R]] = defaultdict(list)
    for record in records:
        if (owner := owners.get(record.request_id)) is not None:
            found[owner].append(record)
    return found


NO_ROWS = NO_OUTPUTS.handle, NO_OUTPUTS.ids, NO_OUTPUTS.count


class SharedCore:
    """The receiver of a core. Every request that the core has belongs to one front end.

    `figures` are two cells that others may read: open requests, and how often the core has died.
    `gone` is called with the reason when the core has stopped for good.
    """

    def __init__(self, core: ForwardingCore, figures: F64, gone: Callable[[str], None]) -> None:
        self._core, self._figures, self._gone = core, figures, gone
        self._links: dict[int, FrontEndLink] = {}
        self._owners: dict[str, int] = {}  # the front end of each request
        self._lock = Lock()  # for the owners
        self._peers = PeerQuestions()
        self._gauges: dict[str, dict[str, Any]] = {}  # the latest answer of each engine
        self._health = Lock()  # so that front ends learn it in order
        self._known = health_of(core)  # to the front ends
        core.start(self)

    # -- front ends come and go ---------------------------------------------

    def join(self, link: FrontEndLink) -> None:
        """Add a front end, before its first message is read."""
        with self._health:
            self._links[link.number] = link
            link.send(self._known)

    def leave(self, link: FrontEndLink) -> None:
        """Abort the requests of a front end whose process is gone."""
        self._links.pop(link.number, None)
        self._peers.left(link)
        with self._lock:
            left = [name for name, owner in self._owners.items() if owner == link.number]
        for name in left:
            self._core.abort(name)

    def check_health(self) -> None:
        """Report to the front ends if the health of the core has changed."""
        with self._health:
            health = health_of(self._core)
            if health != self._known:
                self._known = health
                self._send_all(health)

    def _send_all(self, message: ToFrontEnd) -> None:
        for link in [*self._links.values()]:
            link.send(message)

    # -- from the thread of a front end -------------------------------------

    def serve(self, link: FrontEndLink, message: FromFrontEnd) -> None:
        match message:
            case wire.EncodedRequest():
                self._submit(link, message)
            case wire.AbortMessage(command) | wire.ParkMessage(command) | wire.WakeMessage(command):
                if self._owners.get(command.request_id) == link.number:
                    self._apply(command)
            case wire.NumberedQuestion(number, question):
                self._ask(link, number, question)
            case PeerQuestion():
                self._relay(link, message)
            case PeerAnswer():
                self._peers.answered(link, message)
            case _:
                pass  # the link itself reads that the front end is ready

    def _relay(self, link: FrontEndLink, question: PeerQuestion) -> None:
        others = [one for one in [*self._links.values()] if one is not link and one.is_ready]
        self._peers.relay(link, question, others)
        for one in others:
            if one.number not in self._links:  # it left before it was asked
                self._peers.left(one)

    def _submit(self, link: FrontEndLink, message: wire.EncodedRequest) -> None:
        with self._lock:
            owner = self._owners.setdefault(message.id, link.number)
            self._count()
        try:
            if owner != link.number:
                raise RequestError(f"request {message.id!r} is already open; use another id")
            self._core.forward(message)
        except PacelineError as error:
            if owner == link.number:
                self._release(message.id)
            refused = (Refused(message.id, error),)
            link.send(wire.encode_delivery(Delivery(monotonic(), *NO_ROWS, refused=refused)))

    def _apply(self, command: Abort | Park | Wake) -> None:
        match command:
            case Abort(name, child):
                self._core.abort(name, child)
            case Park(name, reason):
                self._core.park(name, reason)
            case Wake(name):
                self._core.wake(name)

    def _ask(self, link: FrontEndLink, number: int, question: Question) -> None:
        """Pass a question on. A front end that drains does so alone: the core stays open.

        Without a core, all front ends get the same figures, so that none reports older ones.
        """
        answer: Future[Any] = Future()
        answer.add_done_callback(partial(send_answer, link, number))
        if question.verb == "drain":
            answer.set_result(None)
            return
        try:
            asked = self._core.ask(question)
        except PacelineError as error:
            if question.verb == "gauges" and (known := self._gauges.get(question.argument)):
                answer.set_result(known | NO_REQUESTS)
            else:
                answer.set_exception(error)
            return
        if question.verb == "gauges":
            asked.add_done_callback(partial(self._keep_gauges, question.argument))
        asked.add_done_callback(partial(send_answer, link, number))

    def _keep_gauges(self, engine: str, answer: Future[Any]) -> None:
        if answer.exception() is None:
            self._gauges[engine] = answer.result()

    # -- from the thread of the core ----------------------------------------

    def health_changed(self) -> None:
        self.check_health()

    def deliver(self, delivery: Delivery) -> None:
        with self._lock:
            parts = split(delivery, self._owners)
            for one in delivery.ended:
                if one.child < 0:
                    self._owners.pop(one.request_id, None)
            for one in delivery.refused:
                self._owners.pop(one.request_id, None)
            self._count()
        for number, part in parts.items():
            if (link := self._links.get(number)) is not None:
                link.send(wire.encode_delivery(part))

    def died(self, reason: str, for_good: bool) -> None:
        with self._lock:
            self._owners.clear()
            self._count()
        self._figures[1] += 1
        with self._health:
            self._known = health_of(self._core)
            self._send_all(CoreDeath(reason, self._known))
        if for_good:
            self._gone(reason)

    def _release(self, name: str) -> None:
        with self._lock:
            self._owners.pop(name, None)
            self._count()

    def _count(self) -> None:
        self._figures[0] = len(self._owners)


def health_of(core: Core) -> CoreHealth:
    return CoreHealth(core.healthy() or "", tuple(core.troubles()))


def send_answer(link: FrontEndLink, number: int, answer: Future[Any]) -> None:
    link.send(wire.NumberedAnswer.of(number, answer))
