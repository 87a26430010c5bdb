"""Requests on their way: clients have sent them, the front end reads them, the engine gets them."""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from paceline.simulate.profile import FrontEndTerms
from paceline.simulate.requests import SimulatedRequest


class Coming:
    """Requests that are sent to a server, now or later, and have not reached its engine. The front
    end reads one after the other.

    `next_at` is when the next one reaches the engine.
    """

    def __init__(self, requests: Sequence[SimulatedRequest], terms: FrontEndTerms) -> None:
        """Requests are known by their place in `requests`."""
        self.terms = terms
        self.next_at = inf
        self._requests = requests
        self._sent: list[tuple[float, int]] = []  # a heap of times and requests
        self._free_at = 0.0  # when the front end has read what it was sent

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, at: float, number: int) -> None:
        """A client sends a request at this time."""
        heappush(self._sent, (at, number))
        self._look()

    def pop(self) -> tuple[float, int]:
        """The next to reach the engine: when it was sent, and its number."""
        self._free_at = self.next_at
        found = heappop(self._sent)
        self._look()
        return found

    def _look(self) -> None:
        if not self._sent:
            self.next_at = inf
            return
        sent_at, number = self._sent[0]
        tokens = self._requests[number].input_len
        read_s = self.terms.request_s + tokens * self.terms.prompt_token_s
        self.next_at = max(sent_at, self._free_at) + read_s
