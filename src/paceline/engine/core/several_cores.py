"""Several engines as one core: each request runs in one of them."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from time import monotonic
from typing import Any

from paceline.core.errors import PacelineError, RequestError
from paceline.core.plan import NO_OUTPUTS, Ended, Timings
from paceline.core.request import Finish, Request
from paceline.engine.adapter_control import undoing
from paceline.engine.core.answers import settle, when_all_done
from paceline.engine.core.figures import NO_REQUESTS, first_figures
from paceline.engine.core.messages import (
    Capacity,
    Delivery,
    EngineFailed,
    Question,
    Refused,
    Verb,
)
from paceline.engine.core.placements import Placement, Placements
from paceline.engine.core.ports import Receiver
from paceline.engine.core.restart import RestartingCore
from paceline.engine.live.frames import FrameQuestion

log = logging.getLogger(__name__)


def explanations(found: dict[int, str]) -> str:
    """What engines know of a request; several do if its id was used again."""
    return "\n".join(f"engine {engine}: {text}" for engine, text in found.items())


def latest_life(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The life of a request in the engine that got it last."""
    engine = max(found, key=lambda one: found[one]["arrival"])
    return found[engine] | {"engine": engine}


# How the answers of the engines become one; by default all of them are the same.
JOINS: dict[Verb, Callable[[dict[int, Any]], Any]] = {
    "explain": explanations,
    "life": latest_life,
    "paused": lambda found: max(found.values()),
    "reset_prefix_cache": lambda found: all(found.values()),
}
NO_ROWS = NO_OUTPUTS.handle, NO_OUTPUTS.ids, NO_OUTPUTS.count
ABOUT_REQUESTS = ("explain", "life")  # which one of the engines knows
# What an engine that is restarted is asked again.
LASTING = ("pause", "resume", "drain", "load_adapter", "unload_adapter")


@dataclass(frozen=True, slots=True)
class EngineReceiver:
    """Receives the deliveries of one engine."""

    core: "SeveralCores"
    engine: int

    def deliver(self, delivery: Delivery) -> None:
        self.core.delivered(self.engine, delivery)

    def died(self, reason: str, for_good: bool) -> None:
        self.core.engine_died(self.engine, reason, for_good)


class SeveralCores:
    """See `ports.Core`. It is healthy while one of its engines is.

    A request goes to the engine with the longest known prefix, unless that one is busy. When the
    queue of that engine is full, it is submitted to another one. When the engine dies, another one
    continues it after the tokens that were delivered, once: a request that kills engines must not
    kill all of them. With `exits`, the first engine that is not restarted ends the core, otherwise
    the last one does.
    """

    def __init__(self, cores: Sequence[RestartingCore], exits: bool = False) -> None:
        self._cores, self._exits = cores, exits
        found = [core.ready() for core in cores]
        self._capacity = replace(
            found[0],
            max_model_len=min(one.max_model_len for one in found),
            num_blocks=min(one.num_blocks for one in found),
            engines=len(cores),
        )
        self._figures = [first_figures(one) | {"crashes": 0} for one in found]  # latest of each
        self._gone = [False] * len(cores)
        self._placements = Placements(self._capacity)
        self._lock = Lock()  # for the placements, and while questions are sent to all engines
        self._receiver: Receiver | None = None

    def ready(self) -> Capacity:
        return self._capacity

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        for engine, core in enumerate(self._cores):
            core.start(EngineReceiver(self, engine))

    # -- for any thread -----------------------------------------------------

    def submit(self, request: Request, parked: str = "") -> None:
        with self._lock:
            if request.id in self._placements.open:
                raise RequestError(f"request {request.id!r} is already open; use another id")
            one, rank = self._placements.begin(request, parked), request.data_parallel_rank
            try:
                self._place(one, self._engines() if rank is None else [rank])
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
                self._cores[engine].submit(one.request, one.parked)
                break
            except EngineFailed:
                engines.remove(engine)
                if not engines:
                    raise
        self._placements.place(one, engine)

    def abort(self, request_id: str, child: int | None = None) -> None:
        with self._lock:
            if (one := self._placements.open.get(request_id)) is not None:
                if child is None:
                    one.aborted = True
                else:
                    one.ended.add(child)
                self._cores[one.engine].abort(request_id, child)

    def park(self, request_id: str, reason: str) -> None:
        with self._lock:
            if (one := self._placements.open.get(request_id)) is not None:
                one.parked = reason
                self._cores[one.engine].park(request_id, reason)

    def wake(self, request_id: str) -> None:
        with self._lock:
            if (one := self._placements.open.get(request_id)) is not None:
                one.parked = ""
                self._cores[one.engine].wake(request_id)

    def healthy(self) -> str | None:
        troubles = self.troubles()
        return None if "" in troubles else "; ".join(dict.fromkeys(troubles))

    def troubles(self) -> list[str]:
        return [core.healthy() or "" for core in self._cores]

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._cores)) as closing:
            closing.map(RestartingCore.close, self._cores)

    # -- questions ----------------------------------------------------------

    def ask(self, question: Question) -> Future[Any]:
        """Ask the engine that the question names, or all engines."""
        match question.verb:
            case "gauges":
                return self._gauges(int(question.argument or 0), question)
            case "snapshot":
                return self._cores[int(question.argument or 0)].ask(question)
            case "frames":
                engine = FrameQuestion.of(question.argument).engine_of(len(self._cores))
                return self._cores[engine].ask(question)
            case "reset_prefix_cache":
                with self._lock:
                    self._placements.forget_prefixes()
            case "load_adapter" | "unload_adapter":
                return self._change_adapters(question)
            case _:
                pass
        return self._ask_all(question)

    def _gauges(self, engine: int, question: Question) -> Future[Any]:
        """The figures of an engine; the latest ones without requests if it is not there."""
        answer: Future[Any] = Future()

        def answered(found: Future[Any]) -> None:
            if found.exception() is None:
                self._figures[engine] |= found.result()
            else:
                self._figures[engine] |= NO_REQUESTS
            settle(answer, dict(self._figures[engine]), None)

        self._asked(self._cores[engine], question).add_done_callback(answered)
        return answer

    def _ask_all(self, question: Question) -> Future[Any]:
        with self._lock:  # so that all engines have questions of several threads in one order
            asked = [self._asked(core, question) for core in self._cores]
        answer: Future[Any] = Future()
        when_all_done(asked, lambda: self._join(question, asked, answer))
        return answer

    def _change_adapters(self, question: Question) -> Future[Any]:
        """Load or unload an adapter in all engines, or in none if one of them refuses."""
        with self._lock:  # as in `_ask_all`
            before = [self._asked(core, Question("adapters")) for core in self._cores]
            asked = [self._asked(core, question) for core in self._cores]
        answer: Future[Any] = Future()

        def answered() -> None:
            errors = [one.exception() for one in asked]
            refusals = [one for one in errors if one and not isinstance(one, EngineFailed)]
            changed = [engine for engine, error in enumerate(errors) if error is None]
            if not (refusals and changed):
                self._join(question, asked, answer)
                return
            undone: list[Future[Any]] = []
            for engine in changed:
                listed: Any = () if before[engine].exception() else before[engine].result()
                undo = undoing(question, listed)
                self._cores[engine].keep(undo)  # it may be gone before it has done it
                undone.append(self._asked(self._cores[engine], undo))
            when_all_done(undone, lambda: settle(answer, None, refusals[0]))

        when_all_done([*before, *asked], answered)
        return answer

    def _asked(self, core: RestartingCore, question: Question) -> Future[Any]:
        """The answer of an engine, which fails if the engine is not there."""
        try:
            if question.verb in ABOUT_REQUESTS and (trouble := core.healthy()):
                raise EngineFailed(trouble)  # others may know the request, and must not wait
            return core.ask(question)
        except EngineFailed as error:
            absent: Future[Any] = Future()
            absent.set_exception(error)
            return absent

    def _join(self, question: Question, asked: Sequence[Future[Any]], answer: Future[Any]) -> None:
        """Answer with what the engines answered, of which some may not be there.

        One refusal is the answer of all, unless another engine can explain the request.
        """
        errors = [one.exception() for one in asked]
        found = {engine: asked[engine].result() for engine, one in enumerate(errors) if not one}
        refusals = [one for one in errors if one and not isinstance(one, EngineFailed)]
        if not found or (refusals and question.verb not in ABOUT_REQUESTS):
            settle(answer, None, (refusals or errors)[0])
            return
        if question.verb in LASTING:
            for engine, core in enumerate(self._cores):
                core.keep(question, ask=engine not in found)
        join = JOINS.get(question.verb)
        settle(answer, join(found) if join else next(iter(found.values())), None)

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
        client chose the engine stays there."""
        is_bound = one.aborted or one.request.data_parallel_rank is not None
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
        """Move the requests of an engine to others, or end them."""
        with self._lock:
            self._figures[engine]["crashes"] += 1
            self._gone[engine] = for_good
            lost = self._placements.leave_all(engine)
            ended = [self._end_of(one, reason) for one in lost if not self._moves(one)]
            last = for_good and (self._exits or all(self._gone))
        if lost:
            moved = len(lost) - len(ended)
            log.warning("engine %d had %d requests; %d were moved", engine, len(lost), moved)
        if ended:
            now = monotonic()
            self._deliver(Delivery(now, *NO_ROWS, ended=tuple(ended), engine=engine))
        if last:
            assert self._receiver is not None
            self._receiver.died(reason, for_good=True)

    def _moves(self, lost: Placement) -> bool:
        """Have another engine continue a request, if that can be done."""
        if not (lost.aborted or lost.all_ended or lost.moved):
            lost.moved = True
            try:
                lost.request = self._placements.continuation(lost)
                self._place(lost, self._engines())
            except PacelineError:  # no other engine is there
                pass
            else:
                return True
        self._placements.end(lost)
        return False

    def _end_of(self, one: Placement, reason: str) -> Ended:
        """The end of a request that no engine can continue."""
        request = one.request
        took = Timings(total_s=monotonic() - (request.arrival or 0.0))
        if one.aborted or one.all_ended:
            return Ended(request.id, Finish.ABORT, timings=took)
        return Ended(request.id, Finish.ERROR, message=reason, timings=took)

    def _deliver(self, delivery: Delivery) -> None:
        assert self._receiver is not None
        self._receiver.deliver(delivery)


def without_lost(delivery: Delivery) -> Delivery:
    """A delivery of an engine that has stopped, without the requests that it had to give up: it
    reports its death next, and then they are moved."""
    ended = tuple(one for one in delivery.ended if one.finish is not Finish.ERROR)
    refused = tuple(one for one in delivery.refused if not isinstance(one.error, EngineFailed))
    return replace(delivery, ended=ended, refused=refused)
