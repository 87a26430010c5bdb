"""Where the requests of a simulation come from: a trace, or a synthetic load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Protocol

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.errors import ConfigError
from paceline.simulator.requests import OUTPUT, SimulatedRequest
from paceline.workloads import traces
from paceline.workloads.call import Call, LengthDistribution, Segment
from paceline.workloads.traces import LATEST_S

UNCUT = 2**31 - 1
PROMPT, ANSWER, ONE_TURN = (LengthDistribution("even", size, size) for size in (128, 64, 1))


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests, and the tokens of their outputs where they are known."""

    requests: Sequence[SimulatedRequest]
    outputs: Mapping[str, I32] = field(default_factory=dict[str, I32])

    @property
    def has_rate(self) -> bool:
        """Do requests come at different times?"""
        return len({one.at_s for one in self.requests if one.follows < 0}) > 1

    @property
    def rate(self) -> float:
        """Requests per second, over the time in which they come."""
        times = [one.at_s for one in self.requests if one.follows < 0]
        return len(self.requests) / max(max(times) - min(times), 1e-9)

    def at_rate(self, rate: float) -> "Workload":
        """The same requests, faster or slower, so that there are so many per second."""
        factor = rate / self.rate
        return Workload(
            [
                one if one.follows >= 0 else replace(one, at_s=one.at_s / factor)
                for one in self.requests
            ],
            self.outputs,
        )

    def evenly(self) -> "Workload":
        """The same requests in the same time, with the same gap between all of them."""
        first = sorted(
            (at for at, one in enumerate(self.requests) if one.follows < 0),
            key=lambda at: self.requests[at].at_s,
        )
        begin, end = (self.requests[first[at]].at_s for at in (0, -1))
        times = dict(zip(first, np.linspace(begin, end, len(first)).tolist(), strict=True))
        return Workload(
            [replace(one, at_s=times.get(at, one.at_s)) for at, one in enumerate(self.requests)],
            self.outputs,
        )

    def most_within(self, seconds: float) -> int:
        """How many requests come within so many seconds at most."""
        times = np.sort([one.at_s for one in self.requests if one.follows < 0])
        return int((np.searchsorted(times, times + seconds, "right") - np.arange(len(times))).max())


class LoadSource(Protocol):
    """Builds a workload; small enough to be sent to another process."""

    def workload(self) -> Workload: ...


@dataclass(frozen=True, slots=True)
class Clients:
    """Who sends the requests: tenants with their shares, and how long clients stay."""

    tenants: Mapping[str, float] = field(default_factory=dict[str, float])
    leaves_after_s: float = inf
    seed: int = 0

    def of(self, requests: Sequence[SimulatedRequest]) -> list[SimulatedRequest]:
        """The requests with a tenant each, unless they have one. A conversation has one tenant."""
        random = np.random.default_rng([self.seed, 2])
        names = list(self.tenants)
        shares = np.array([self.tenants[name] for name in names])
        found: list[SimulatedRequest] = []
        for one in requests:
            tenant = one.tenant
            if names and not tenant:
                drawn = names[int(random.choice(len(names), p=shares / shares.sum()))]
                tenant = drawn if one.follows < 0 else found[one.follows].tenant
            stays = min(one.leaves_after_s, self.leaves_after_s)
            if not one.at_s <= LATEST_S:
                raise ConfigError(
                    f"request {one.id!r} comes after {one.at_s:.3g} s; the longest load is "
                    f"{LATEST_S:.0e} s: raise its rate or speed, or shorten its pauses"
                )
            found.append(replace(one, tenant=tenant, leaves_after_s=stays))
        return found


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """The first requests of a trace."""

    path: Path
    count: int | None = None  # None: all
    speed: float = 1.0
    max_input_len: int = UNCUT
    max_output_len: int = UNCUT
    clients: Clients = field(default_factory=Clients)

    def workload(self) -> Workload:
        calls = traces.read(self.path, self.count)
        cut = [call.cut(self.max_input_len, self.max_output_len) for call in calls]
        found = [request_of(f"{number}", call, self.speed) for number, call in enumerate(cut)]
        return Workload(self.clients.of(found))


def request_of(name: str, call: Call, speed: float = 1.0) -> SimulatedRequest:
    return SimulatedRequest(
        name,
        call.at_s / speed,
        call.segments,
        max(call.output_len, 1),
        call.tenant,
        call.priority,
        call.deadline_s,
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with one rate of arrivals."""

    rate: float  # requests, or conversations, per second
    seconds: float = inf

    @staticmethod
    def parse(text: str) -> "tuple[Phase, ...]":
        """Of "5", or of "2:60,20:10,2:60": a rate, and for how many seconds."""
        found: list[Phase] = []
        for part in text.split(","):
            rate, colon, seconds = part.partition(":")
            try:
                found.append(Phase(float(rate), float(seconds) if colon else inf))
            except ValueError:
                raise ConfigError(
                    f"{text!r} is no rate; write 5, or 2:60,20:10 for seconds at each rate"
                ) from None
            if not (0 < found[-1].rate < inf and found[-1].seconds > 0):
                raise ConfigError(f"{text!r} has a rate or a time that is not positive and finite")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class SyntheticLoad:
    """Conversations of one or more turns, with lengths and pauses drawn at random.

    The first `prefix_len` tokens of a prompt are one of `prefixes` shared prefixes. A later turn
    repeats the conversation so far, and comes `think_s` after the answer, on average.
    """

    count: int  # conversations
    phases: tuple[Phase, ...] = (Phase(1.0),)
    burstiness: float = 1.0  # 1: Poisson; below 1: in bursts; above 1: more even
    input_len: LengthDistribution = PROMPT
    output_len: LengthDistribution = ANSWER
    prefix_len: int = 0
    prefixes: int = 1
    turns: LengthDistribution = ONE_TURN
    think_s: float = 10.0
    clients: Clients = field(default_factory=Clients)

    def workload(self) -> Workload:
        random = np.random.default_rng([self.clients.seed, 1])
        found: list[SimulatedRequest] = []
        for number, at_s in enumerate(arrivals(self.phases, self.count, self.burstiness, random)):
            found += self._conversation(number, float(at_s), len(found), random)
        return Workload(self.clients.of(found))

    def _conversation(
        self, number: int, at_s: float, first: int, random: np.random.Generator
    ) -> list[SimulatedRequest]:
        """Its turns; the first has the number `first` in the load."""
        content: tuple[Segment, ...] = ()
        if self.prefix_len:
            content = (Segment(f"prefix {random.integers(self.prefixes)}", self.prefix_len),)
        found: list[SimulatedRequest] = []
        for turn in range(self.turns.draw(random)):
            own = Segment(f"{number}.{turn}", self.input_len.draw(random))
            if not turn:
                own = replace(own, tokens=max(own.tokens - self.prefix_len, 1))
            content += (own,)
            output = self.output_len.draw(random)
            when = at_s if not turn else float(random.exponential(self.think_s))
            follows = first + turn - 1 if turn else -1
            found.append(
                SimulatedRequest(f"{number}.{turn}", when, content, output, follows=follows)
            )
            content += (Segment(OUTPUT, output),)
        return found


def arrivals(
    phases: Sequence[Phase], count: int, burstiness: float, random: np.random.Generator
) -> F64:  # [count]
    """Seconds since the beginning. After the last phase the first one begins again."""
    work = np.cumsum(random.gamma(burstiness, 1.0 / burstiness, count))
    if len(phases) == 1:
        return work / phases[0].rate
    if any(phase.seconds == inf for phase in phases):
        raise ConfigError("each of several rates needs its seconds, for example 2:60,20:10")
    ends = np.cumsum([phase.seconds for phase in phases])
    done = np.cumsum([phase.seconds * phase.rate for phase in phases])  # arrivals, on average
    rounds, rest = np.divmod(work, done[-1])
    within = np.interp(rest, np.concatenate([[0.0], done]), np.concatenate([[0.0], ends]))
    return rounds * ends[-1] + within
