"""A simulated server: requests arrive, the real engine runs on a virtual clock, clients leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from paceline.core.arrays import I32, Index
from paceline.core.errors import ConfigError, PacelineError, RequestError
from paceline.core.plan import Ended
from paceline.core.request import Finish, Request
from paceline.core.settings.config import Config
from paceline.core.system.host import collection_paused
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Delivery
from paceline.engine.loop.turn_times import TurnTimer
from paceline.engine.settings import EngineSettings
from paceline.sched.scheduler import Scheduler
from paceline.sched.stats import Stats
from paceline.sched.transfers.swapping import Rates
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import FrontEndTerms, Profile
from paceline.simulator.device.timed_runner import (
    DraftedSequences,
    Drafting,
    TimedRunner,
    step_times,
)
from paceline.simulator.requests import Coming, SimulatedRequest
from paceline.simulator.results.request_log import RequestLog
from paceline.simulator.results.timeline import Occupancy, Timeline
from paceline.simulator.senders import Senders
from paceline.testing.runner import VirtualClock

MEASURED_POSITIONS = 2048
LEAST_S = 1e-9  # of a profile that has no time for something


@dataclass(frozen=True, slots=True)
class ServerModel:
    """What is simulated: a device with a model, and the settings of its server."""

    profile: Profile
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    depth: int = 0  # steps in flight; 0: those of the profile
    timeout_s: float = 0.0  # after which requests end; 0: no limit
    http: bool = True  # are there clients of a server, or callers of an engine?
    drafting: Drafting | None = None  # due with num_speculative_tokens

    @property
    def config(self) -> Config:
        """The settings of the scheduler: given, by the profile, by default, in this order."""
        chosen = {**self.profile.settings, **self.settings}
        size = Config.of(**chosen).cache.block_size
        chosen.setdefault("num_blocks", self.profile.memory.blocks(size))
        config = Config.of(**chosen)
        if (drafts := config.speculation.num_speculative_tokens) and self.drafting is None:
            raise ConfigError(
                f"num_speculative_tokens is {drafts}, but it is not known how many drafts are "
                "right; give their acceptance, such as --acceptance 0.7"
            )
        return config

    @property
    def frontend(self) -> FrontEndTerms:
        return self.profile.frontend + self.profile.http if self.http else self.profile.frontend

    @property
    def rates(self) -> Rates:
        """How fast the device recomputes and swaps, for `preemption_mode="auto"`."""
        prompt = BatchSummary.prompt(MEASURED_POSITIONS)
        block_s = self.profile.moves.swap_in(1) or self.profile.moves.swap_out(1)
        recompute = MEASURED_POSITIONS / max(self.profile.device_s(prompt), LEAST_S)
        return Rates(recompute, 1 / max(block_s, LEAST_S))


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRun:
    """What came of a simulation."""

    requests: Sequence[SimulatedRequest]
    log: RequestLog
    timeline: Timeline
    stats: Stats
    total_blocks: int
    explained: Mapping[str, str]
    parts: Sequence[Index] = ()  # the requests of each replica, if there are several


class Outside(Protocol):
    """What is around a server: those who send requests to it."""

    def ended(self, number: int, time: float) -> None:
        """A request has ended, and its client knows."""
        ...

    def takes_back(self, number: int, error: PacelineError, time: float) -> bool:
        """The server refuses a request. Does another one get it?"""
        ...


class Replica:
    """One server. It has its own clock, and its next event is at `next_at`.

    Requests pass the front end, which takes one after the other. The engine refuses, queues and
    ends them as it does in a server. A client that leaves aborts its request.
    """

    def __init__(
        self,
        model: ServerModel,
        senders: Senders,
        outside: Outside,
        outputs: Mapping[str, I32] | None = None,
    ) -> None:
        """`outputs` has the tokens of requests, where they are known."""
        self._senders, self._outside, self._model = senders, outside, model
        self._depth = model.depth or model.profile.depth
        self.scheduler = Scheduler(model.config)
        self.scheduler.measure(model.rates)
        self._clock = VirtualClock()
        drafted = self._prepared_drafts()
        self._runner = TimedRunner(model.profile, self._clock, outputs, drafted)
        self._engine = Engine(
            self.scheduler, self._runner, self._clock, self._depth, EngineSettings()
        )
        self.timeline = Timeline()
        self._coming = Coming(senders.requests, model.frontend)
        self._numbers: dict[str, int] = {}  # of open requests, by id
        self._leaving: list[tuple[float, int]] = []  # when clients leave, and their requests
        self._rests_until = 0.0

    def _prepared_drafts(self) -> DraftedSequences | None:
        """None: there are no drafts. Otherwise the scheduler knows how long they take."""
        config, drafting = self.scheduler.config, self._model.drafting
        if drafting is None or not config.speculation.num_speculative_tokens:
            self._measure_prompts()
            return None
        times = step_times(self._model.profile, config, self._depth, drafting)
        self.scheduler.measure_steps(times)
        return DraftedSequences(drafting, config.step.max_num_seqs)

    def _measure_prompts(self) -> None:
        """What an engine measures when it starts, for a policy that asks how long steps take."""
        if self.scheduler.view.asks_step_times:
            clock = VirtualClock()
            runner = TimedRunner(self._model.profile, clock)
            timer = TurnTimer(runner, self.scheduler.config, self._depth, clock)
            if (times := timer.with_prompts(inf)) is not None:
                self.scheduler.measure_steps(times)

    @property
    def next_at(self) -> float:
        """Time of the next event; inf: none until a request arrives."""
        now = self._clock()
        if self._coming.next_at <= now:
            return now
        if self._engine.idle:
            return max(now, self._next_event()) if self._coming else inf
        if self._engine.resting:
            return max(now, min(self._rests_until, self._next_event()))
        return now

    def go_on(self) -> None:
        """Make a turn at `next_at`."""
        self._clock.advance_to(self.next_at)
        engine = self._engine
        while due := self._due():
            self._submit(due)
        self._let_leave()
        if engine.idle:
            return
        delivery = engine.turn()
        if delivery is not None:
            self._deliver(delivery)
        self.timeline.add(self._clock(), Occupancy.of(self.scheduler.view))
        self._rests_until = self._clock() + (engine.patience_s or 0.0)

    # -- clients ------------------------------------------------------------

    def send(self, at: float, number: int) -> None:
        """A client sends a request, now or later."""
        self._coming.send(at, number)

    def _next_event(self) -> float:
        leaving = self._leaving[0][0] if self._leaving else inf
        return min(self._coming.next_at, leaving)

    def _due(self) -> list[Request]:
        """The requests that reach the engine now."""
        now, coming, due = self._clock(), self._coming, list[Request]()
        while coming.next_at <= now:
            sent_at, number = coming.pop()
            try:
                due.append(self._senders.request(number, sent_at))
            except RequestError as error:
                self._refuse(number, error)
        return due

    def _submit(self, due: Sequence[Request]) -> None:
        for request in due:
            try:
                self._engine.submit(request)
            except RequestError as error:
                self._refuse(request.handle, error)
            else:
                self._open(request)

    def _open(self, request: Request) -> None:
        """The engine has a request. Its client may leave before its end."""
        self._numbers[request.id] = request.handle
        if (leaves_at := self._leaves_at(request)) < inf:
            heappush(self._leaving, (leaves_at, request.handle))

    def _leaves_at(self, request: Request) -> float:
        stays = min(self._stays_s(request.handle), self._model.timeout_s or inf)
        return (request.arrival or 0.0) + stays

    def _stays_s(self, number: int) -> float:
        """Seconds that a client waits for the end of its request."""
        return self._senders.requests[number].leaves_after_s

    def _let_leave(self) -> None:
        """Abort the requests of clients that leave now."""
        now = self._clock()
        while self._leaving and self._leaving[0][0] <= now:
            request_id = self._senders.requests[heappop(self._leaving)[1]].id
            if request_id in self._numbers:
                self._engine.abort(request_id)

    def _refuse(self, number: int, error: PacelineError) -> None:
        now = self._clock()
        if not self._outside.takes_back(number, error, now):
            self._senders.refuse(number, error, now)
            self._outside.ended(number, now)

    def _deliver(self, delivery: Delivery) -> None:
        time = delivery.time + self._coming.terms.deliver_s(len(delivery.count))
        if new := self._senders.log.delivered(delivery, time):
            self.timeline.add_tokens_at(delivery.time, new)
        for refused in delivery.refused:
            self._refuse(self._numbers.pop(refused.request_id), refused.error)
        for ended in delivery.ended:
            self.close(ended, time)

    def close(self, ended: Ended, time: float) -> None:
        """The client knows that its request has ended."""
        number, limit_s = self._numbers.pop(ended.request_id), self._model.timeout_s
        if ended.finish is Finish.ABORT and 0 < limit_s <= self._stays_s(number):
            message = f"the request did not end within {limit_s:g} s"
            ended = replace(ended, finish=Finish.TIMEOUT, message=message)
        self._senders.log.close(number, ended, time)
        self._outside.ended(number, time)
        if ended.request_id in self._senders.explained:
            self._senders.explained[ended.request_id] = self._told(ended.request_id)

    def _told(self, request_id: str) -> str:
        try:
            return self.scheduler.explain(request_id)
        except RequestError as error:  # more requests ended in this turn than a journal remembers
            return str(error)


class SimulatedServer:
    """Serves one load alone, from its first request to its last."""

    def __init__(
        self,
        model: ServerModel,
        requests: Sequence[SimulatedRequest],
        outputs: Mapping[str, I32] | None = None,
        explained: Sequence[str] = (),
    ) -> None:
        """`outputs` has the tokens of requests, where they are known; `explained` names those
        that are explained when they end."""
        self._senders = Senders(requests, explained, model.config.service)
        self._replica = Replica(model, self._senders, self, outputs)
        for at, number in self._senders.first():
            self._replica.send(at, number)

    @property
    def scheduler(self) -> Scheduler:
        return self._replica.scheduler

    def run(self) -> SimulatedRun:
        with collection_paused():  # a simulation leaves no cycles behind
            while self._replica.next_at < inf:
                self._replica.go_on()
        return SimulatedRun(
            self._senders.requests,
            self._senders.log,
            self._replica.timeline,
            self.scheduler.stats,
            self.scheduler.config.cache.num_blocks,
            self._senders.explained,
        )

    def ended(self, number: int, time: float) -> None:
        for at, follower in self._senders.followers(number, time):
            self._replica.send(at, follower)

    def takes_back(self, number: int, error: PacelineError, time: float) -> bool:
        """There is no other server."""
        return False
