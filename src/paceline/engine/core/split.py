"""Splits deliveries by front end."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from paceline.core.plan import Candidates
from paceline.engine.core.handles import FRONT_END_SHIFT
from paceline.engine.core.messages import Delivery


class RequestRecord(Protocol):
    """A record of one request."""

    @property
    def request_id(self) -> str: ...


R = TypeVar("R", bound=RequestRecord)


def split(delivery: Delivery, owners: Mapping[str, int]) -> dict[int, Delivery]:
    """The part of each front end that has one, by number.

    Rows go by their handle. Records of a request go by `owners`, the front end of each open
    request; a record of another request is dropped.
    """
    number = delivery.handle >> FRONT_END_SHIFT
    ended, refused = grouped(delivery.ended, owners), grouped(delivery.refused, owners)
    prompt, pooled = grouped(delivery.prompt, owners), grouped(delivery.pooled, owners)
    parts: dict[int, Delivery] = {}
    for one in {*np.unique(number).tolist(), *ended, *refused, *prompt, *pooled}:
        rows = np.flatnonzero(number == one)
        logprob, found = delivery.logprob, delivery.candidates
        parts[one] = Delivery(
            delivery.time,
            delivery.handle[rows],
            delivery.ids[rows],
            delivery.count[rows],
            None if logprob is None else logprob[rows],
            None if found is None else Candidates(found.ids[rows], found.logprob[rows]),
            tuple(ended.get(one, ())),
            tuple(refused.get(one, ())),
            tuple(prompt.get(one, ())),
            tuple(pooled.get(one, ())),
            delivery.engine,
        )
    return parts


def grouped(records: Sequence[R], owners: Mapping[str, int]) -> dict[int, list[R]]:
    found: dict[int, list[R]] = defaultdict(list)
    for record in records:
        if (owner := owners.get(record.request_id)) is not None:
            found[owner].append(record)
    return found
