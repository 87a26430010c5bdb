"""The requests of a simulation, and how the scheduler gets them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from paceline.core.arrays import I32
from paceline.core.request import Request
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
