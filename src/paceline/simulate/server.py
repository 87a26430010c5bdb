"""A simulated server: requests arrive, the real engine runs on a virtual clock, clients leave."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from paceline.core.arrays import F64, I32
from paceline.core.config import Config
from paceline.core.errors import ConfigError, QueueFull, RequestError
from paceline.core.plan import Ended
from paceline.core.request import Request
from paceline.engine.core.messages import Delivery
from paceline.engine.core.timings import timed
from paceline.engine.settings import EngineSettings
from paceline.sched.course import Course
from paceline.sched.leaping import LeapingScheduler, Occupancy
from paceline.sched.stats import Stats
from paceline.sched.swapping import Rates
from paceline.sim.clock import VirtualClock
from paceline.simulate.batch_summary import BatchSummary
from paceline.simulate.coming import Coming
from paceline.simulate.drafting import DraftedSequences, Drafting, step_times
from paceline.simulate.leaping_engine import LeapingEngine
from paceline.simulate.profile import FrontEndTerms, Profile
from paceline.simulate.request_log import RequestLog
from paceline.simulate.requests import RequestBuilder, SimulatedRequest, check
from paceline.simulate.timed_runner import Stretch, TimedRunner
from paceline.simulate.timeline import Timeline

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
    leaping: bool = True  # make many equal steps at once; the results are the same
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


class SimulatedServer:
    """Serves one load, from its first request to its last.

    Requests pass the front end, which takes one after the other. The engine refuses, queues and
    ends them as it does in a server. A client that leaves aborts its request.
    """

    def __init__(
        self,
        model: ServerModel,
        requests: Sequence[SimulatedRequest],
        outputs: Mapping[str, I32] | None = None,
        explained: Sequence[str] = (),
    ) -> None:
        """`outputs` has the tokens of requests, where they are known; `explained` names those
        whose life is to be told at their end."""
        check(requests)
        self.requests, self._model = requests, model
        self._depth = model.depth or model.profile.depth
        self.scheduler = LeapingScheduler(model.config)
        self.scheduler.measure(model.rates)
        self._clock = VirtualClock()
        drafted = self._prepared_drafts()
        self._runner = TimedRunner(model.profile, self._clock, outputs, drafted)
        self._engine = LeapingEngine(
            self.scheduler, self._runner, self._clock, self._depth, EngineSettings()
        )
        self.log, self.timeline = RequestLog(requests), Timeline()
        self._explained: dict[str, str] = dict.fromkeys(explained, "")
        self._frontend = model.frontend
        self._coming = Coming(requests, self._frontend)
        self._builder = RequestBuilder()
        self._numbers: dict[str, int] = {}  # of open requests, by id
        self._leaving: list[tuple[float, int]] = []  # when clients leave, and their requests

    def _prepared_drafts(self) -> DraftedSequences | None:
        """None: there are no drafts. Otherwise the scheduler knows how long they take."""
        config, drafting = self.scheduler.config, self._model.drafting
        if drafting is None or not config.speculation.num_speculative_tokens:
            return None
        times = step_times(self._model.profile, config, self._depth, drafting)
        self.scheduler.measure_steps(times)
        return DraftedSequences(drafting, config.step.max_num_seqs)

    def run(self) -> SimulatedRun:
        with uncollected():
            while self._go_on():
                pass
        return SimulatedRun(
            self.requests,
            self.log,
            self.timeline,
            self.scheduler.stats,
            self.scheduler.config.cache.num_blocks,
            self._explained,
        )

    def _go_on(self) -> bool:
        """Make a turn, or many, or wait for the next event. False: there is none."""
        engine, due = self._engine, self._due()
        if self._model.leaping and self._leap(due):
            return True
        self.scheduler.settle()
        while due:
            self._submit(due)
            due = self._due()
        self._let_leave()
        if engine.idle:
            if self._coming:
                self._clock.advance_to(self._next_event())
            return bool(self._coming)
        delivery = engine.turn()
        if delivery is not None:
            self._deliver(delivery)
        self.timeline.add(self._clock(), self.scheduler.occupancy)
        if engine.resting and not engine.idle:
            patience = engine.patience_s or 0.0
            self._clock.advance_to(min(self._clock() + patience, self._next_event()))
        return True

    # -- clients ------------------------------------------------------------

    def _next_event(self) -> float:
        leaving = self._leaving[0][0] if self._leaving else inf
        return min(self._coming.next_at, leaving)

    def _due(self) -> list[Request]:
        """The requests that reach the engine now."""
        now, coming, due = self._clock(), self._coming, list[Request]()
        while coming.next_at <= now:
            arrival, number = coming.pop()
            self.log.arrival[number] = arrival
            try:
                due.append(self._builder.request(self.requests[number], number, arrival))
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
        stays = min(self.requests[request.handle].leaves_after_s, self._model.timeout_s or inf)
        return (request.arrival or 0.0) + stays

    def _let_leave(self) -> None:
        """Abort the requests of clients that leave now."""
        now = self._clock()
        while self._leaving and self._leaving[0][0] <= now:
            request_id = self.requests[heappop(self._leaving)[1]].id
            if request_id in self._numbers:
                self._engine.abort(request_id)

    def _refuse(self, number: int, error: Exception) -> None:
        outcome = "refused" if isinstance(error, QueueFull) else "impossible"
        self.log.refuse(number, outcome, str(error), self._clock())
        self._coming.ended(number, self._clock())

    def _deliver(self, delivery: Delivery) -> None:
        time = delivery.time + self._frontend.deliver_s(len(delivery.count))
        if new := self.log.delivered(delivery, time):
            self.timeline.add_tokens_at(delivery.time, new)
        for refused in delivery.refused:
            self._refuse(self._numbers.pop(refused.request_id), refused.error)
        for ended in delivery.ended:
            self.close(ended, time)

    def close(self, ended: Ended, time: float) -> None:
        """The client knows that its request has ended."""
        number = self._numbers.pop(ended.request_id)
        self.log.close(number, ended, time)
        self._coming.ended(number, time)
        if ended.request_id in self._explained:
            self._explained[ended.request_id] = self.scheduler.explain(ended.request_id)

    # -- many turns at once ---------------------------------------------------

    def _leap(self, due: list[Request]) -> bool:
        """Make all turns at once in which nothing is decided, until the next event. Returns whether
        there were any."""
        scheduler, runner, now = self.scheduler, self._runner, self._clock()
        if self._next_event() <= now or self._engine.has_messages:
            return False
        if (self._engine.resting and not self._engine.idle) or any(
            self._leaves_at(one) <= now for one in due
        ):
            return False
        most = runner.turns_within(self._next_event() - now)
        course = scheduler.course(runner.in_flight, self._depth, most, due, now)
        if course is None:
            return False
        for request in due:
            self._open(request)
        runner.follow(course)
        stretch = runner.stretch(course, self._next_event())
        turns = self._turns_until_follower(course, len(stretch))
        if turns < max(course.behind, 1):
            assert not due, "requests have joined a step that is not made"
            return False
        self._make(course, stretch.first(turns))
        return True

    def _make(self, course: Course, stretch: Stretch) -> None:
        scheduler, runner, turns = self.scheduler, self._runner, len(stretch)
        sent = course.tokens(turns)
        times = stretch.ended + self._frontend.deliver_each_s(sent)
        new = self.log.repeated(course, times)
        watch = LeapWatch(self, stretch.ended, times)
        if watch.turns:
            self.timeline.add_tokens(stretch.ended, sent)
        else:
            self.timeline.add_tokens_at(float(stretch.ended[-1]), new)
        ids = runner.ids(course, turns)
        scheduler.leap(course, stretch.begun, stretch.ended, ids, watch)
        plans = scheduler.latest(course, turns)
        self._engine.leap(plans if course.behind else ())
        runner.skip(course, stretch, plans)

    def _turns_until_follower(self, course: Course, turns: int) -> int:
        """Of so many turns, those up to the first end of a request that another one follows."""
        if self._coming.has_followers:
            for turn, rows in course.endings(turns):
                if any(map(self._coming.is_followed, course.handle[rows].tolist())):
                    return turn + 1
        return turns


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: a simulation leaves no cycles behind, and the collector would
    walk over all requests of the load again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LeapWatch:
    """Tells a server what happens in a leap of its scheduler."""

    def __init__(self, server: SimulatedServer, ended: F64, times: F64) -> None:
        """Turns end at the times `ended`, and clients know at `times`."""
        self._server, self._ended, self._times = server, ended, times
        self.turns = server.timeline.last_of_spans(ended)

    def ended(self, turn: int, end: Ended) -> None:
        self._server.close(timed(self._server.scheduler, end), float(self._times[turn]))

    def observe(self, turn: int, found: Occupancy) -> None:
        self._server.timeline.add(float(self._ended[turn]), found)
