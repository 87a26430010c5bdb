"""Deliveries split by front end, against a split row by row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import RequestError
from paceline.core.plan import Candidates, Ended
from paceline.core.pooling import PooledSpan, PromptScores
from paceline.core.request import Finish
from paceline.engine.choice_rows import FRONT_END_SHIFT
from paceline.engine.loop.messages import Delivery, Refused
from paceline.engine.transport.shared_core import split

WIDTH, TOP = 3, 2


def random_delivery(seed: int) -> tuple[Delivery, dict[str, int]]:
    """Rows of five front ends, and records of requests of which some belong to none."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(0, 40))
    owners = {f"r{number}": int(random.integers(0, 5)) for number in range(20)}
    names = [f"r{number}" for number in range(25)]

    def some(most: int) -> list[str]:
        return random.choice(names, int(random.integers(0, most)), replace=False).tolist()

    delivery = Delivery(
        1.5,
        random.integers(0, 5, rows) << FRONT_END_SHIFT | np.arange(rows),
        random.integers(0, 99, (rows, WIDTH)).astype(np.int32),
        random.integers(0, WIDTH, rows).astype(np.int32),
        ended=tuple(Ended(name, Finish.LENGTH) for name in some(9)),
        refused=tuple(Refused(name, RequestError(name)) for name in some(4)),
        prompt=tuple(
            PromptScores(name, 0, 0, *(np.empty(0, np.float32),) * 4)  # type: ignore[arg-type]
            for name in some(4)
        ),
        pooled=tuple(PooledSpan(name, 0, 0, 1, np.ones(2, np.float32)) for name in some(4)),
    )
    if seed % 2:
        score = random.random((rows, WIDTH)).astype(np.float32)
        found = Candidates(delivery.ids[:, :TOP], score[:, :TOP])
        delivery = replace(delivery, logprob=score, candidates=found)
    return delivery, owners


def row_of(delivery: Delivery, row: int) -> tuple[Any, ...]:
    found = delivery.candidates
    return (
        int(delivery.handle[row]),
        delivery.ids[row].tolist(),
        int(delivery.count[row]),
        None if delivery.logprob is None else delivery.logprob[row].tolist(),
        None if found is None else (found.ids[row].tolist(), found.logprob[row].tolist()),
    )


@pytest.mark.parametrize("seed", range(24))
def test_every_front_end_gets_its_rows_and_records_in_order(seed: int) -> None:
    delivery, owners = random_delivery(seed)
    expected: dict[int, list[Any]] = {}
    for row in range(len(delivery.handle)):
        number = int(delivery.handle[row]) >> FRONT_END_SHIFT
        expected.setdefault(number, []).append(row_of(delivery, row))
    for record in (*delivery.ended, *delivery.refused, *delivery.prompt, *delivery.pooled):
        if record.request_id in owners:
            expected.setdefault(owners[record.request_id], []).append(record)
    parts = split(delivery, owners)
    found = {
        number: [
            *(row_of(part, row) for row in range(len(part.handle))),
            *(*part.ended, *part.refused, *part.prompt, *part.pooled),
        ]
        for number, part in parts.items()
    }
    assert found == expected
    assert {part.time for part in parts.values()} <= {1.5}


def test_a_delivery_of_no_one_has_no_parts() -> None:
    delivery, _ = random_delivery(0)
    empty = Delivery(1.0, delivery.handle[:0], delivery.ids[:0], delivery.count[:0])
    assert split(replace(empty, ended=(Ended("gone", Finish.ABORT),)), {}) == {}
