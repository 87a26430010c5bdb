"""One or several engines as one core: each request runs in one of them, and outlives it."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock, Timer
from time import monotonic
from typing import Any

from msgspec import structs

from paceline.core.errors import PacelineError, RequestError
from paceline.core.events import Timings
from paceline.core.plan import NO_OUTPUTS, Ended
from paceline.core.request import Finish, Request
from paceline.engine.loop.messages import (
    Capacity,
    Delivery,
    EngineFailed,
    EngineUnavailable,
    Question,
    Refused,
)
from paceline.engine.loop.ports import Receiver
from paceline.engine.replicas.questions import EngineQuestions
from paceline.engine.replicas.router import Placement, Placements
from paceline.engine.settings import CoreSettings
from paceline.engine.transport.restart import RestartingCore
from paceline.engine.transport.wire import EncodedRequest

log = logging.getLogger(__name__)

NO_ROWS = NO_OUTPUTS.handle, NO_OUTPUTS.ids, NO_OUTPUTS.count
WAIT_S = CoreSettings().core_restart_wait_s
LEAST_WAIT_S = 0.01
MOST_DEATHS = 2  # in a row that a request survives: two engines may die together


@dataclass(frozen=True, slots=True)
class EngineReceiver:
    """Receives the deliveries of one engine."""

    core: "SeveralCores"
    engine: int

    def deliver(self, delivery: Delivery) -> None:
        self.core.delivered(self.engine, delivery)

    def died(self, reason: str, for_good: bool) -> None:
        self.core.engine_died(self.engine, reason, for_good)

    def health_changed(self) -> None:
        self.core.engine_returned()


class SeveralCores:
    """See `ports.Core`. It is healthy while one of its engines is.

    A request goes to the engine with the longest known prefix, unless that one is busy. When the
    queue of that engine is full, it is submitted to another one. When the engine dies, another one
    continues it after the tokens that were delivered, or the same one after its restart: until
    then, but for at most `wait_s`, the request is held. A request that kills engines must not kill
    all of them, so few deaths in a row, without a token in between, end it. With `exits`, the first
    engine that is not restarted ends the core, otherwise the last one does.
    """

    def __init__(
        self, cores: Sequence[RestartingCore], exits: bool = False, wait_s: float = WAIT_S
    ) -> None:
        self._cores, self._exits, self._wait_s = cores, exits, wait_s
        self._most_deaths = min(len(cores), MOST_DEATHS)
        found = [core.ready() for core in cores]
        self._capacity = replace(
            found[0],
            max_model_len=min(one.max_model_len for one in found),
            num_blocks=min(one.num_blocks for one in found),
            engines=len(cores),
        )
        self._questions = EngineQuestions(cores, found)
        self._gone = [False] * len(cores)
        self._placements = Placements(self._capacity)
        self._lock = Lock()  # for the placements
        self._receiver: Receiver | None = None
        self._waiting: Timer | None = None  # ends requests that are held for too long

    def ready(self) -> Capacity:
        return self._capacity

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        for engine, core in enumerate(self._cores):
            core.start(EngineReceiver(self, engine))

    # -- for any thread -----------------------------------------------------

    def submit(self, request: Request, parked: str = "") -> None:
        self.forward(EncodedRequest.of(request, parked))

    def forward(self, message: EncodedRequest) -> None:
        with self._lock:
            if message.id in self._placements.open:
                raise RequestError(f"request {message.id!r} is already open; use another id")
            one = self._placements.begin(message)
            try:
                if message.rank is None:
                    self._place_or_hold(one)
                else:
                    self._place(one, [message.rank])
            except BaseException:
                self._placements.end(one)
                raise

    def _engines(self, full: int = -1) -> list[int]:
        """The engines that are there, and are not full; all if none is."""
        troubles = self.troubles()
        engines = [engine for engine in range(len(troubles)) if engine != full]
        return [engine for engine in engines if not troubles[engine]] or engines

    def _place(self, one: Placement, engines: list[int]) -> None:
        """Submit a request to one of some engines."""
        while True:
            engine = self._placements.choose(one, engines)
            try:
                self._cores[engine].forward(one.request)
                break
            except EngineFailed:
                engines.remove(engine)
                if not engines:
                    raise
        self._placements.place(one, engine)

    def _place_or_hold(self, one: Placement) -> None:
        """Submit a request to an engine, or keep it until one is restarted."""
        try:
            self._place(one, self._engines())
        except EngineFailed:
            if self._is_over:
                raise
            self._placements.hold(one, monotonic())
            if self._waiting is None:
                self._wait(self._wait_s)

    @property
    def _is_over(self) -> bool:
        """Whether no engine will return that the core could go on with."""
        return any(self._gone) if self._exits else all(self._gone)

    def abort(self, request_id: str, child: int | None = None) -> None:
        with self._lock:
            if (one := self._placements.open.get(request_id)) is None:
                return
            if child is None:
                one.aborted = True
            else:
                one.ended.add(child)
            held = request_id in self._placements.held
            if not held:
                self._cores[one.engine].abort(request_id, child)
            elif one.aborted or one.all_ended:
                self._placements.forget(one)
            else:  # the engine that gets it next does not compute this choice
                one.request = self._placements.continuation(one)
        if held and (one.aborted or one.all_ended):
            self._report([self._end_of(one, "")])

    def park(self, request_id: str, reason: str) -> None:
        with self._lock:
            if (one := self._placements.open.get(request_id)) is not None:
                one.request = structs.replace(one.request, parked=reason)
                if request_id not in self._placements.held:
                    self._cores[one.engine].park(request_id, reason)

    def wake(self, request_id: str) -> None:
        with self._lock:
            if (one := self._placements.open.get(request_id)) is not None:
                one.request = structs.replace(one.request, parked="")
                if request_id not in self._placements.held:
                    self._cores[one.engine].wake(request_id)

    def healthy(self) -> str | None:
        troubles = self.troubles()
        return None if "" in troubles else "; ".join(dict.fromkeys(troubles))

    def troubles(self) -> list[str]:
        return [core.healthy() or "" for core in self._cores]

    def close(self) -> None:
        with self._lock:
            self._gone = [True] * len(self._cores)  # so that no request waits for a restart
            if self._waiting is not None:
                self._waiting.cancel()
        with ThreadPoolExecutor(len(self._cores)) as closing:
            closing.map(RestartingCore.close, self._cores)

    def ask(self, question: Question) -> Future[Any]:
        if question.verb == "reset_prefix_cache":
            with self._lock:
                self._placements.forget_prefixes()
        return self._questions.ask(question)

    # -- from the threads of the engines ------------------------------------

    def delivered(self, engine: int, delivery: Delivery) -> None:
        with self._lock:
            if delivery.broken:
                delivery = without_lost(delivery)
            if delivery.refused:
                delivery = self._with_other_places(delivery)
            delivery = self._placements.delivered(delivery)
        self._deliver(replace(delivery, engine=engine))

    def _with_other_places(self, delivery: Delivery) -> Delivery:
        """Without requests that another engine takes. One that cannot be continued has begun, so it
        ends."""
        refused, ended = list[Refused](), list[Ended]()
        for one in delivery.refused:
            found = self._placements.open.get(one.request_id)
            if found is not None and self._finds_room(found, one.error):
                continue
            if found is not None and self._placements.has_begun(found):
                ended.append(self._end_of(found, str(one.error)))
            else:
                refused.append(one)
        return replace(delivery, refused=tuple(refused), ended=(*delivery.ended, *ended))

    def _finds_room(self, one: Placement, error: PacelineError) -> bool:
        """Submit a request to another engine, once, if the queue of its own is full. One whose
        client chose the engine stays there, and so does every one if there is no other."""
        alone = len(self._cores) == 1
        is_bound = alone or one.aborted or one.request.rank is not None
        if is_bound or not one.route.turns(error):
            return False
        full = one.engine
        self._placements.leave(one)
        try:
            self._place(one, self._engines(full))
        except EngineFailed:
            self._placements.place(one, full)  # whose refusal is reported
            return False
        return True

    def engine_died(self, engine: int, reason: str, for_good: bool) -> None:
        """Move the requests of an engine to others, hold them until it is back, or end them."""
        assert self._receiver is not None
        self._receiver.health_changed()  # first: it takes a while to move many requests
        with self._lock:
            self._questions.crashed(engine)
            self._gone[engine] |= for_good
            lost = self._placements.leave_all(engine)
            ended = [self._end_of(one, reason) for one in lost if not self._moves(one)]
            last = for_good and self._is_over
            if last:
                ended += [self._end_of(one, reason) for one in self._placements.forget_held()]
        if lost:
            go_on = len(lost) - len(ended)
            log.warning("engine %d had %d requests; %d go on", engine, len(lost), go_on)
        if ended:
            self._report(ended, engine=engine)
        if last:
            self._receiver.died(reason, for_good=True)

    def _moves(self, lost: Placement) -> bool:
        """Have an engine continue a request, now or after a restart, if that can be done."""
        if not (lost.aborted or lost.all_ended) and (
            self._placements.died_under(lost) <= self._most_deaths
        ):
            try:
                lost.request = self._placements.continuation(lost)
                self._place_or_hold(lost)
            except PacelineError:  # no engine will be there
                pass
            else:
                return True
        self._placements.end(lost)
        return False

    def engine_returned(self) -> None:
        """Submit the requests that are held, in the order in which they came or were lost."""
        assert self._receiver is not None
        self._receiver.health_changed()
        with self._lock:
            for one in [*self._placements.held.values()]:
                try:
                    self._place(one, self._engines())
                except EngineFailed:  # it is gone again, and will return again
                    break

    def _wait(self, seconds: float) -> None:
        """Look at the requests that are held after some seconds."""
        self._waiting = Timer(seconds, self._give_up)
        self._waiting.daemon = True
        self._waiting.start()

    def _give_up(self) -> None:
        """End requests that were held for too long."""
        why = f"no engine was there for {self._wait_s:g} s: {self.healthy()}"
        with self._lock:
            now = monotonic()
            late = self._placements.forget_held(before=now - self._wait_s)
            self._waiting = None
            if held := [one.held_since for one in self._placements.held.values()]:
                self._wait(max(min(held) + self._wait_s - now, LEAST_WAIT_S))
        ended = [self._end_of(one, why) for one in late if one.tokens]
        refused = [
            Refused(one.request.id, EngineUnavailable(why)) for one in late if not one.tokens
        ]
        if late:
            self._report(ended, refused)

    def _end_of(self, one: Placement, reason: str) -> Ended:
        """The end of a request that no engine can continue."""
        request = one.request.request()
        took = Timings(total_s=monotonic() - (request.arrival or 0.0))
        if one.aborted or one.all_ended:
            return Ended(request.id, Finish.ABORT, timings=took)
        return Ended(request.id, Finish.ERROR, message=reason, timings=took)

    def _report(
        self, ended: Sequence[Ended], refused: Sequence[Refused] = (), engine: int = 0
    ) -> None:
        """Report the ends of requests that no engine has."""
        told = tuple(ended), tuple(refused)
        self._deliver(Delivery(monotonic(), *NO_ROWS, None, None, *told, engine=engine))

    def _deliver(self, delivery: Delivery) -> None:
        assert self._receiver is not None
        self._receiver.deliver(delivery)


def without_lost(delivery: Delivery) -> Delivery:
    """A delivery of an engine that has stopped, without the requests that it had to give up: it
    reports its death next, and then they are moved."""
    ended = tuple(one for one in delivery.ended if one.finish is not Finish.ERROR)
    refused = tuple(one for one in delivery.refused if not isinstance(one.error, EngineFailed))
    return replace(delivery, ended=ended, refused=refused)
