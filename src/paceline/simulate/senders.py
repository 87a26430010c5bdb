"""The clients of a load: what they send, and what became of it."""

from collections.abc import Iterator, Sequence
from math import isnan

from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.simulate.request_log import RequestLog
from paceline.simulate.requests import RequestBuilder, SimulatedRequest, check


class Senders:
    """All requests of a load by their numbers. One that follows another is sent when that one has
    ended, whichever server ran it.

    `explained` has the lives of the requests whose ids it was made with, once they have ended.
    """

    def __init__(self, requests: Sequence[SimulatedRequest], explained: Sequence[str] = ()) -> None:
        check(requests)
        self.requests, self.log = requests, RequestLog(requests)
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
