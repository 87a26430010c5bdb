"""The clients of a load: what they send, which replica gets it, and what became of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from random import Random
from typing import Protocol

from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.core.settings.features import ServiceConfig
from paceline.engine.loop.messages import Capacity
from paceline.engine.replicas.router import Route, Router
from paceline.simulator.requests import RequestBuilder, SimulatedRequest, check
from paceline.simulator.results.request_log import NOTHING_PROMISED, RequestLog


class Senders:
    """All requests of a load by their numbers. One that follows another is sent when that one has
    ended, whichever server ran it.

    `explained` has the lives of the requests whose ids it was made with, once they have ended.
    """

    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        explained: Sequence[str] = (),
        promised: ServiceConfig = NOTHING_PROMISED,
    ) -> None:
        check(requests)
        self.requests, self.log = requests, RequestLog(requests, promised)
        self.explained: dict[str, str] = dict.fromkeys(explained, "")
        self._builder = RequestBuilder()
        self._built: dict[int, Request] = {}  # ahead of time
        self._after: dict[int, list[int]] = {}  # requests by the one that they follow
        for number, one in enumerate(requests):
            if one.follows >= 0:
                self._after.setdefault(one.follows, []).append(number)

    # -- what they send -----------------------------------------------------

    def first(self) -> Iterator[tuple[float, int]]:
        """Requests that follow no other, and when each is sent."""
        for number, one in enumerate(self.requests):
            if one.follows < 0:
                yield one.at_s, number

    def followers(self, number: int, time: float) -> Iterator[tuple[float, int]]:
        """Requests that follow one which has ended, and when each is sent."""
        for follower in self._after.pop(number, ()):
            yield time + self.requests[follower].at_s, follower

    def refuse(self, number: int, error: PacelineError, time: float) -> None:
        """No server takes a request, and its client knows why."""
        self.log.refuse(number, error, time)
        if (name := self.requests[number].id) in self.explained:
            self.explained[name] = f"{name!r}: refused: {error}."

    # -- as an engine gets it -----------------------------------------------

    def build(self, number: int, sent_at: float) -> Request:
        """Build a request when it is sent, for the next call of `request`."""
        self._built[number] = made = self.request(number, sent_at)
        return made

    def request(self, number: int, sent_at: float) -> Request:
        """RequestError if there can be no such request. It arrives when it was first sent."""
        if (made := self._built.pop(number, None)) is not None:
            return made
        if isnan(arrival := float(self.log.arrival[number])):
            self.log.arrival[number] = arrival = sent_at
        return self._builder.request(self.requests[number], number, arrival)


class Dealer(Protocol):
    """Deals requests to replicas; both are known by number."""

    def deal(self, number: int, request: Request) -> int:
        """The replica that gets a request; another one than before if it is dealt again."""
        ...

    def takes_back(self, number: int, error: PacelineError) -> bool:
        """The replica refuses the request. Is it to be dealt again?"""
        ...

    def ended(self, number: int) -> None:
        """The end of a request is known, perhaps for the second time."""
        ...


class RoutedDealer:
    """Asks the router of `paceline serve --data-parallel-size`. Ties are broken by a seed, so that
    a simulation can be repeated."""

    def __init__(self, capacity: Capacity) -> None:
        self._router = Router(capacity, Random(0))
        self._replicas: Sequence[int] = range(capacity.engines)
        self._open: dict[int, Route] = {}

    def deal(self, number: int, request: Request) -> int:
        route, replicas = self._open.get(number), self._replicas
        if route is None:
            self._open[number] = route = self._router.route(request)
        else:
            self._router.leave(route)
            replicas = [one for one in replicas if one != route.engine]
        chosen = self._router.choose(route, replicas)
        self._router.place(route, chosen)
        return chosen

    def takes_back(self, number: int, error: PacelineError) -> bool:
        return len(self._replicas) > 1 and self._open[number].turns(error)

    def ended(self, number: int) -> None:
        if (route := self._open.pop(number, None)) is not None:
            self._router.leave(route)


class TurnDealer:
    """Each replica gets a request in its turn. Turns of a conversation may stay together."""

    def __init__(
        self, replicas: int, requests: Sequence[SimulatedRequest], is_sticky: bool
    ) -> None:
        self._replicas, self._requests, self._is_sticky = replicas, requests, is_sticky
        self._dealt = 0
        self._replica_of: dict[int, int] = {}  # of requests, where that matters

    def deal(self, number: int, request: Request) -> int:
        before = self._replica_of.get(self._requests[number].follows)
        chosen = self._dealt % self._replicas if before is None else before
        self._dealt += before is None
        if self._is_sticky:
            self._replica_of[number] = chosen
        return chosen

    def takes_back(self, number: int, error: PacelineError) -> bool:
        return False

    def ended(self, number: int) -> None:
        """It does not look at loads."""


def by_prefix(capacity: Capacity, requests: Sequence[SimulatedRequest]) -> Dealer:
    return RoutedDealer(capacity)


def by_load(capacity: Capacity, requests: Sequence[SimulatedRequest]) -> Dealer:
    return RoutedDealer(replace(capacity, enable_prefix_caching=False))


def by_conversation(capacity: Capacity, requests: Sequence[SimulatedRequest]) -> Dealer:
    return TurnDealer(capacity.engines, requests, is_sticky=True)


def in_turn(capacity: Capacity, requests: Sequence[SimulatedRequest]) -> Dealer:
    return TurnDealer(capacity.engines, requests, is_sticky=False)


# By name. The capacity is that of each replica, with their number; the requests are the load.
DEALERS: Mapping[str, Callable[[Capacity, Sequence[SimulatedRequest]], Dealer]] = {
    "prefix": by_prefix,
    "load": by_load,
    "sessions": by_conversation,
    "turns": in_turn,
}
