"""A simulated server: requests arrive, the real engine runs on a virtual clock, clients leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.core.errors import ConfigError, QueueFull, RequestError
from paceline.engine.core.messages import Delivery
from paceline.engine.settings import EngineSettings
from paceline.sched.leaping import LeapingScheduler
from paceline.sched.stats import Stats
from paceline.sched.swapping import Rates
from paceline.sim.clock import VirtualClock
from paceline.simulate.batch_summary import BatchSummary
from paceline.simulate.coming import Coming
from paceline.simulate.leaping_engine import LeapingEngine
from paceline.simulate.profile import FrontEndTerms, Profile
from paceline.simulate.request_log import RequestLog
from paceline.simulate.requests import RequestBuilder, SimulatedRequest, check
from paceline.simulate.timed_runner import TimedRunner
from paceline.simulate.timeline import Timeline

LONGEST_LEAP = 4096  # steps
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

    @property
    def config(self) -> Config:
        """The settings of the scheduler: given, by the profile, by default, in this order."""
        chosen = {**self.profile.settings, **self.settings}
        size = Config.of(**chosen).cache.block_size
        chosen.setdefault("num_blocks", self.profile.memory.blocks(size))
        config = Config.of(**chosen)
        if config.speculation.num_speculative_tokens:
            raise ConfigError("num_speculative_tokens: a profile has no times of drafts; remove it")
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
        self._runner = TimedRunner(model.profile, self._clock, outputs)
        self._engine = LeapingEngine(
            self.scheduler, self._runner, self._clock, self._depth, EngineSettings()
        )
        self.log, self.timeline = RequestLog(requests), Timeline()
        self._explained: dict[str, str] = dict.fromkeys(explained, "")
        self._frontend = model.frontend
        self._coming = Coming(requests, self._frontend)
        self._builder = RequestBuilder()
        self._open: dict[str, int] = {}  # numbers of requests, by id
        self._leaving: list[tuple[float, int]] = []  # when clients leave, and their requests

    def run(self) -> SimulatedRun:
        engine = self._engine
        while True:
            self._take_due()
            if engine.idle:
                if not self._coming:
                    break
                self._clock.advance_to(self._next_event() + self._model.profile.host.wake_s)
                continue
            delivery = engine.turn()
            if delivery is not None:
                self._deliver(delivery)
            self._observe()
            if engine.resting and not engine.idle:
                patience = engine.patience_s or 0.0
                self._clock.advance_to(min(self._clock() + patience, self._next_event()))
            elif self._model.leaping:
                self._leap()
        return SimulatedRun(
            self.requests,
            self.log,
            self.timeline,
            self.scheduler.stats,
            self.scheduler.config.cache.num_blocks,
            self._explained,
        )

    # -- clients ------------------------------------------------------------

    def _next_event(self) -> float:
        leaving = self._leaving[0][0] if self._leaving else inf
        return min(self._coming.next_at, leaving)

    def _take_due(self) -> None:
        """Let requests arrive and clients leave whose time has come."""
        now = self._clock()
        while self._coming.next_at <= now:
            self._submit(*self._coming.pop())
        while self._leaving and self._leaving[0][0] <= now:
            request_id = self.requests[heappop(self._leaving)[1]].id
            if request_id in self._open:
                self._engine.abort(request_id)

    def _submit(self, arrival: float, number: int) -> None:
        one = self.requests[number]
        self.log.arrival[number] = arrival
        try:
            request = self._builder.request(one, number, arrival)
            self._engine.submit(request)
        except RequestError as error:
            self._refuse(number, error)
            return
        self._open[one.id] = number
        timeout = self._model.timeout_s or inf
        if (stays := min(one.leaves_after_s, timeout)) < inf:
            heappush(self._leaving, (arrival + stays, number))

    def _refuse(self, number: int, error: Exception) -> None:
        outcome = "refused" if isinstance(error, QueueFull) else "impossible"
        self.log.refuse(number, outcome, str(error), self._clock())
        self._coming.ended(number, self._clock())

    def _deliver(self, delivery: Delivery) -> None:
        time = delivery.time + self._frontend.deliver_s(len(delivery.count))
        if new := self.log.delivered(delivery, time):
            self.timeline.add_tokens_at(delivery.time, new)
        for refused in delivery.refused:
            self._refuse(self._open.pop(refused.request_id), refused.error)
        for ended in delivery.ended:
            number = self._open.pop(ended.request_id)
            self.log.close(number, ended, time)
            self._coming.ended(number, time)
            if ended.request_id in self._explained:
                self._explained[ended.request_id] = self.scheduler.explain(ended.request_id)

    def _observe(self) -> None:
        self.timeline.add(self._clock(), self.scheduler.occupancy)

    # -- many equal steps at once -------------------------------------------

    def _leap(self) -> None:
        """Make all turns at once in which nothing is decided, until the next event."""
        scheduler, runner, steady = self.scheduler, self._runner, self.scheduler.steady
        now = self._clock()
        until = self._next_event()
        if steady is None or until <= now or self._engine.has_messages:
            return
        if not runner.repeats(steady.rows, self._depth):
            return
        ahead = scheduler.steps_ahead(LONGEST_LEAP)
        if ahead < self._depth:
            return
        stretch = runner.stretch(ahead, until).ended_by(self.timeline.span_end(now))
        if len(stretch) < self._depth:
            return
        ids = runner.ids(steady.rows, steady.known, len(stretch))
        scheduler.leap(ids, stretch.begun, stretch.ended)
        self._engine.leap(len(stretch))
        runner.skip(stretch)
        late = self._frontend.deliver_s(steady.size)
        self.log.repeated(steady.handle, stretch.ended + late)
        self.timeline.add_tokens(stretch.ended, steady.size)
        self._observe()
