"""The highest rate that one replica holds, and how many replicas a load needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice, pairwise, takewhile
from math import inf

from paceline.core.errors import ConfigError
from paceline.simulator.experiment import Experiment, Variant, Workers
from paceline.simulator.fleet import MOST_REPLICAS, FleetModel, simulated
from paceline.simulator.loads import Workload
from paceline.simulator.results.figures import Figures, SimulationReport
from paceline.simulator.server import ServerModel

PRECISION = 0.02  # of the rate
DOUBLINGS = 12
ALONE = 0.1  # requests that run at a time
LASTING = 0.5  # of a rate: if less is served, all requests are rather one burst
AT_ONCE = 2  # rates that are tried at a time
SPREAD_OUT = 2.0  # times the rate that holds: if it also holds without bursts, these are the limit
PLAIN = Variant("")


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """99th percentiles that may not be exceeded, in seconds, by name: ttft, itl, tpot, e2e; the
    share of requests that must complete; and the share that must meet its targets, if they have
    some; 0: they have none."""

    p99_s: Mapping[str, float] = field(default_factory=dict[str, float])
    completed: float = 0.99
    attained: float = 0.0

    def __post_init__(self) -> None:
        if not (self.p99_s or self.attained):
            raise ConfigError(
                "no limit is given; give one or more, such as --ttft-p99 0.5 or "
                "--ttft-target-ms 500"
            )
        if not 0 <= self.attained <= 1:
            raise ConfigError(f"attain is {self.attained}; it must lie in [0, 1]")
        for name, limit in self.p99_s.items():
            if not 0 < limit < inf:
                raise ConfigError(f"{name} p99 is {limit}; it must be positive and finite")

    def broken_by(self, figures: Figures) -> str:
        """The first limit that is broken, in words; empty if none is."""
        if self.attained:
            kept = figures.attained or 0.0
            if kept < self.attained:
                return f"{100 * kept:.1f} % meet their targets"
        elif figures.completed < self.completed * figures.requests:
            return f"{figures.completed:,} of {figures.requests:,} requests complete"
        spreads = {
            "ttft": figures.ttft_ms,
            "itl": figures.itl_ms,
            "tpot": figures.tpot_ms,
            "e2e": figures.e2e_ms,
        }
        for name, limit in self.p99_s.items():
            spread = spreads[name]
            if spread is not None and spread.p99 > 1e3 * limit:
                return f"{name} p99 is {spread.p99 / 1e3:.3g} s"
        return ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate or number of replicas that was tried."""

    tried: float
    broken: str  # the limit that it breaks; "": none
    figures: Figures

    @property
    def lasts(self) -> bool:
        """Of a rate: are requests served about as fast as they come?"""
        return self.figures.requests_per_s >= LASTING * self.tried


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """The best that holds, None if nothing does, and all that was tried.

    is_least   of rates: a higher one may hold too, but the load is too short to tell
    evenly     of rates, if bursts are what breaks the limits: the answer for the same requests,
               evenly spread over time
    """

    best: Trial | None
    trials: tuple[Trial, ...]
    is_least: bool = False
    evenly: "CapacityAnswer | None" = None

    @property
    def fails_alone(self) -> bool:
        """Of rates: does nothing hold, although hardly two requests ran at a time, and not only
        because of bursts?"""
        slowest = min(self.trials, key=lambda one: one.tried)
        spread = slowest.figures.e2e_ms  # None: no request completed
        at_a_time = 0.0 if spread is None else slowest.tried * spread.mean / 1e3
        return self.best is None and self.evenly is None and at_a_time < ALONE


def highest_rate(
    experiment: Experiment, limits: LatencyLimits, jobs: int = 1, precision: float = PRECISION
) -> CapacityAnswer:
    """By search, between a rate that holds and one that does not, in requests per second.

    If the limits are kept at much higher rates when the requests come evenly, the answer has that
    rate as well.
    """
    load = experiment.source.workload()
    if not load.has_rate:
        raise ConfigError(
            "all requests of the load come at the same time, so it has no rate; give a load in "
            "which they come one after the other"
        )
    with Workers(min(jobs, AT_ONCE)) as workers:
        found = RateSearch(experiment, limits, workers).best_of(load, precision)
        if found.is_least:
            return found
        evenly, search = load.evenly(), RateSearch(experiment, limits, workers)
        slowest = min(one.tried for one in found.trials)
        if not search.holds(evenly, SPREAD_OUT * found.best.tried if found.best else slowest):
            return found
        answer = search.best_of(evenly, precision)
        return found if answer.best is None else replace(found, evenly=answer)


class RateSearch:
    """Looks for the highest rate of a load that keeps the limits, and notes what it tried.

    It tries two rates at a time, so that the answer does not depend on the number of processes.
    """

    def __init__(self, experiment: Experiment, limits: LatencyLimits, workers: Workers) -> None:
        self._experiment, self._limits, self._workers = experiment, limits, workers
        self._trials: dict[float, Trial] = {}

    def best_of(self, load: Workload, precision: float) -> CapacityAnswer:
        """The search ends at a rate that holds but does not last: no higher one is tried."""
        low, high = self._bracket(load)
        while low and high and self._trials[high].broken and high / low > 1 + precision:
            third = (high / low) ** (1 / 3)
            low, high = self._narrowed(load, [low, low * third, high / third, high])
        kept = [one for one in self._trials.values() if not one.broken]
        is_least = any(not one.lasts for one in kept)
        lasting = [one for one in kept if one.lasts] or kept
        best = max(lasting, key=lambda one: one.tried, default=None)
        return CapacityAnswer(best, tuple(self._trials.values()), is_least)

    def holds(self, load: Workload, rate: float) -> bool:
        self._try(load, [rate])
        return not self._trials[rate].broken

    def _bracket(self, load: Workload) -> tuple[float, float]:
        """A rate that holds and a higher one, which does not; 0 where there is none."""
        rate = load.rate
        low, high = self._narrowed(load, [0.0, rate, 2 * rate, 0.0])
        for power in range(1, DOUBLINGS, 2):
            if low and high:
                break
            if low:
                tried = [low, rate * 2 ** (power + 1), rate * 2 ** (power + 2), 0.0]
            else:
                tried = [0.0, rate / 2 ** (power + 1), rate / 2**power, high]
            low, high = self._narrowed(load, tried)
        return low, high

    def _narrowed(self, load: Workload, rates: list[float]) -> tuple[float, float]:
        """Try the two rates in the middle. Returns the last of all that holds, and the next."""
        self._try(load, rates[1:3])
        for low, high in pairwise(rates):
            if not (high and self._trials[high].lasts and not self._trials[high].broken):
                return low, high
        return rates[-1], 0.0

    def _try(self, load: Workload, rates: list[float]) -> None:
        new = [rate for rate in rates if rate not in self._trials]
        run = partial(figures_at, self._experiment, load)
        for rate, figures in zip(new, self._workers.map(run, new), strict=True):
            self._trials[rate] = Trial(rate, self._limits.broken_by(figures), figures)


def figures_at(experiment: Experiment, load: Workload, rate: float) -> Figures:
    return experiment.run_on(load.at_rate(rate), PLAIN).report.total


def replicas_needed(
    experiment: Experiment, limits: LatencyLimits, jobs: int, router: str = "prefix"
) -> CapacityAnswer:
    """The fewest replicas that hold the load, by doubling and bisection. All requests of the load
    count together, whichever replica ran them."""
    load = experiment.source.workload()
    trials: dict[int, Trial] = {}
    test = partial(tried, experiment.model, load, limits, router)

    def holds(replicas: int) -> bool:
        if replicas not in trials:
            trials[replicas] = test(replicas)
        return not trials[replicas].broken

    conversations = sum(one.follows < 0 for one in load.requests)
    most = min(conversations, MOST_REPLICAS)  # more of them would have nothing to do
    doubled = iter([*takewhile(lambda number: number < most, (2**n for n in count())), most])
    high = 0
    with Workers(jobs) as workers:
        while not high and (batch := list(islice(doubled, max(jobs, 1)))):
            trials |= zip(batch, workers.map(test, batch), strict=True)
            high = next(filter(holds, batch), 0)
    trials = {number: one for number, one in trials.items() if number <= (high or most)}
    low = max((number for number in trials if number < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return CapacityAnswer(trials.get(high), tuple(trials[number] for number in sorted(trials)))


def tried(
    model: ServerModel, load: Workload, limits: LatencyLimits, router: str, replicas: int
) -> Trial:
    run = simulated(model, FleetModel(replicas, router), load)
    figures = SimulationReport.of(run, {}).total
    return Trial(replicas, limits.broken_by(figures), figures)
