"""Rows of sequences: what an engine delivers reaches the front end under the front end's handle."""

import numpy as np

from paceline.core.request import Request
from paceline.engine.choice_rows import NOBODY, ChoiceRows
from paceline.engine.loop.messages import Delivery
from paceline.engine.replicas.router import SequenceRows


def ask(name: str, handle: int, n: int = 1) -> Request:
    return Request(id=name, prompt=np.ones(3, np.int32), n=n, handle=handle)


def delivery(tokens: dict[int, list[int]]) -> Delivery:
    """By handle."""
    ids = np.zeros((len(tokens), 2), np.int32)
    for row, some in enumerate(tokens.values()):
        ids[row, : len(some)] = some
    count = np.array([len(some) for some in tokens.values()], np.int32)
    return Delivery(0.0, np.array([*tokens]), ids, count)


def test_tokens_are_kept_by_sequence_until_the_request_ends() -> None:
    rows = SequenceRows()
    one, family = rows.add(ask("a", 5000)), rows.add(ask("b", 7000, n=2))
    first = rows.delivered(delivery({family.handle + 1: [1, 2], one.handle: [3]}))
    assert first.handle.tolist() == [7001, 5000]
    second = rows.delivered(delivery({one.handle: [4, 5], family.handle: [6]}))
    assert second.handle.tolist() == [5000, 7000]
    assert rows.tokens(one) == [(3, 4, 5)]
    assert rows.tokens(family) == [(6,), (1, 2)]
    rows.release(one)
    another = rows.add(ask("c", 9000))
    late = rows.delivered(delivery({one.handle: [7], another.handle: [8]}))
    assert late.handle.tolist() == [NOBODY, 9000]
    assert not len(ChoiceRows[None]().new_tokens(late).row), "no row of a front end takes them"
    assert rows.tokens(another) == [(8,)]


def test_there_are_as_many_rows_as_requests() -> None:
    rows = SequenceRows()
    own = [rows.add(ask(str(one), 10_000 + one)) for one in range(200)]
    found = rows.delivered(delivery({one.handle: [7] for one in own}))
    assert found.handle.tolist() == [*range(10_000, 10_200)]
