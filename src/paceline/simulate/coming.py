"""Requests on their way: clients send them, the front end reads them, the engine gets them."""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from paceline.simulate.profile import FrontEndTerms
from paceline.simulate.requests import SimulatedRequest


class Coming:
    """Requests that have not reached the engine. The front end reads one after the other.

    A request that follows another is sent when that one has ended. `next_at` is when the next one
    reaches the engine.
    """

    def __init__(self, requests: Sequence[SimulatedRequest], terms: FrontEndTerms) -> None:
        self._requests, self._terms = requests, terms
        self._after: dict[int, list[int]] = {}  # requests by the one that they follow
        self._sent: list[tuple[float, int]] = []  # a heap of times and requests
        self._free_at = 0.0  # when the front end has read what it was sent
        self.next_at = inf
        for number, one in enumerate(requests):
            if one.follows < 0:
                heappush(self._sent, (one.at_s, number))
            else:
                self._after.setdefault(one.follows, []).append(number)
        self._look()

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def has_followers(self) -> bool:
        """Does any request that has not been sent follow another one?"""
        return bool(self._after)

    def is_followed(self, number: int) -> bool:
        """Will the end of a request send another one?"""
        return number in self._after

    def pop(self) -> tuple[float, int]:
        """The next to reach the engine: when it was sent, and its number."""
        self._free_at = self.next_at
        found = heappop(self._sent)
        self._look()
        return found

    def ended(self, number: int, time: float) -> None:
        """A request has ended: those that follow it are sent after a while."""
        for follower in self._after.pop(number, ()):
            heappush(self._sent, (time + self._requests[follower].at_s, follower))
            self._look()

    def _look(self) -> None:
        if not self._sent:
            self.next_at = inf
            return
        sent_at, number = self._sent[0]
        tokens = self._requests[number].input_len
        read_s = self._terms.request_s + tokens * self._terms.prompt_token_s
        self.next_at = max(sent_at, self._free_at) + read_s
