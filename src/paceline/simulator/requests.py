"""The requests of a simulation, and those on their way to the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from paceline.core.arrays import I32
from paceline.core.request import Request
from paceline.simulator.device.profile import FrontEndTerms
from paceline.workloads.call import Segment

OUTPUT = "output"  # the key of a segment that repeats outputs of earlier requests

Content = tuple[Segment, ...] | I32  # segments, or token ids


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRequest:
    """One request of a load. With `follows`, `at_s` counts from the end of that request, the
    number of an earlier one: a user has read the answer and asks on.
    """

    id: str
    at_s: float
    content: Content
    output_len: int  # tokens
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None  # from arrival to the first token, for the policy
    token_deadline_s: float | None = None
    cache_salt: str = ""
    leaves_after_s: float = inf  # seconds after which its client disconnects
    follows: int = -1
    session: str = ""

    @property
    def input_len(self) -> int:
        if isinstance(self.content, tuple):
            return sum(segment.tokens for segment in self.content)
        return len(self.content)


class RequestBuilder:
    """Builds requests for the scheduler. Each key of a segment stands for one token id, which the
    segment repeats: equal prefixes are equal tokens, and others differ in their first block."""

    def __init__(self) -> None:
        self._ids = {OUTPUT: 0}

    def request(self, one: SimulatedRequest, handle: int, arrival: float) -> Request:
        return Request(
            id=one.id,
            prompt=self.prompt(one.content),
            max_tokens=one.output_len,
            ignore_eos=True,
            priority=one.priority,
            arrival=arrival,
            tenant=one.tenant,
            deadline=one.deadline_s,
            token_deadline=one.token_deadline_s,
            cache_salt=one.cache_salt,
            session=one.session,
            handle=handle,
        )

    def prompt(self, content: Content) -> I32:
        if not isinstance(content, tuple):
            return content
        ids = [self._ids.setdefault(segment.key, len(self._ids)) for segment in content]
        found = np.repeat(np.array(ids, np.int32), [segment.tokens for segment in content])
        found.flags.writeable = False  # then a request takes it as it is
        return found


def check(requests: Sequence[SimulatedRequest]) -> None:
    """Verify that each follows an earlier one, and that ids differ."""
    assert len({one.id for one in requests}) == len(requests), "two requests have the same id"
    for number, one in enumerate(requests):
        assert one.follows < number, f"{one.id!r} follows a later request"


class Coming:
    """Requests that are sent to a server, now or later, and have not reached its engine. The front
    end reads one after the other.

    `next_at` is when the next one reaches the engine.
    """

    def __init__(self, requests: Sequence[SimulatedRequest], terms: FrontEndTerms) -> None:
        """Requests are known by their index in `requests`."""
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
