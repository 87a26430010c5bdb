"""Which of several engines gets a request, by load, session and prefix."""

from collections import Counter
from random import Random

import numpy as np
import pytest

from paceline.core.errors import QueueFull, RequestError
from paceline.core.request import Request
from paceline.engine.loop.messages import Capacity
from paceline.engine.replicas.router import PrefixAffinity, Router
from paceline.kv.keys import Keys

CAPACITY = Capacity(4096, 16, 1000, 8, 100, engines=2)


def request(tokens: int) -> Request:
    return Request("a", np.arange(tokens, dtype=np.int32), max_tokens=1)


def test_the_load_of_a_request_is_what_its_engine_lacks() -> None:
    router = Router(CAPACITY, Random(0))
    first, second = (router.route(request(1024)) for _ in range(2))
    for one in (first, second):
        router.place(one, 1)
    assert (first.load, second.load) == (2.0, 1.0)
    assert router.choose(router.route(request(1024)), [0, 1]) == 1
    router.forget(1)
    assert router.choose(router.route(request(1024)), [0, 1]) == 0
    for one in (first, second):
        router.leave(one)
    assert router.loads == pytest.approx([0, 0])


def test_a_request_turns_to_another_engine_once() -> None:
    route = Router(CAPACITY).route(request(10))
    assert not route.turns(RequestError("it is too long"))
    assert route.turns(QueueFull("the queue is full"))
    assert not route.turns(QueueFull("the queue is full"))


IDLE = {0: 0.0, 1: 0.0, 2: 0.0}


def keys_of(text: str) -> list[bytes]:
    """A key for each letter, which depends on all letters before it."""
    return [text[: end + 1].encode() for end in range(len(text))]


def affinity_of(**bounds: float) -> PrefixAffinity[int]:
    return PrefixAffinity[int](random=Random(0), **bounds)  # pyright: ignore[reportArgumentType]


def test_the_longest_known_prefix_wins():
    affinity = affinity_of()
    affinity.record(0, keys_of("ab"))
    affinity.record(1, keys_of("abcd"))
    affinity.record(2, keys_of("abx"))
    assert [affinity.depth(one, keys_of("abcde")) for one in IDLE] == [2, 4, 2]
    assert {affinity.choose(keys_of("abcde"), IDLE) for _ in range(20)} == {1}
    assert {affinity.choose(keys_of("abxyz"), IDLE) for _ in range(20)} == {2}


@pytest.mark.parametrize(("load", "chosen"), [(20.0, 0), (20.5, 1)])
def test_a_busy_replica_leaves_a_prompt_to_the_next_longest_prefix(load: float, chosen: int):
    affinity = affinity_of(slack=10, ratio=2)
    affinity.record(0, keys_of("abcd"))
    affinity.record(1, keys_of("ab"))
    loads = {0: load, 1: 14.0, 2: 5.0}
    assert {affinity.choose(keys_of("abcd"), loads) for _ in range(20)} == {chosen}


def test_two_random_choices_among_equals():
    affinity = affinity_of(slack=100)
    loads = {0: 1.0, 1: 2.0, 2: 3.0}
    found = Counter(affinity.choose(keys_of("ab"), loads) for _ in range(3000))
    assert found[2] == 0  # it loses against any other
    assert found[0] == pytest.approx(2000, rel=0.1)
    assert found[1] == pytest.approx(1000, rel=0.1)


def test_new_prefixes_spread_over_idle_replicas():
    affinity = affinity_of()
    for group in range(30):
        keys = keys_of(chr(ord("A") + group) * 4)
        affinity.record(affinity.choose(keys, IDLE), keys)
    groups = Counter(
        one
        for group in range(30)
        for one in IDLE
        if affinity.depth(one, keys_of(chr(ord("A") + group) * 4))
    )
    assert sorted(groups.values()) in ([9, 10, 11], [10, 10, 10])


def test_the_last_blocks_of_the_oldest_prompts_are_forgotten_first():
    affinity = affinity_of(most_blocks=6)
    affinity.record(0, keys_of("abcd"))
    affinity.record(0, keys_of("xyz"))
    assert affinity.depth(0, keys_of("abcd")) == 3
    affinity.record(0, keys_of("abcd")[:1])  # used again, so the others are older
    affinity.record(0, keys_of("uv"))
    assert affinity.depth(0, keys_of("abcd")) == 1
    affinity.record(1, keys_of("abcdefgh"))
    assert affinity.depth(1, keys_of("abcdefgh")) == 6


def test_a_replica_that_is_gone_is_forgotten():
    affinity = affinity_of()
    affinity.record(1, keys_of("ab"))
    affinity.forget(1)
    affinity.forget(2)
    assert affinity.depth(1, keys_of("ab")) == 0
    assert affinity.choose(keys_of("ab"), {2: 5.0}) == 2
    assert affinity.choose([], {2: 5.0}) == 2


def test_with_the_keys_of_blocks():
    keys, affinity = Keys(16), affinity_of()
    rng = np.random.default_rng(0)
    stems = rng.integers(0, 1000, (8, 64), dtype=np.int32)
    homes: dict[int, set[int]] = {}
    for _ in range(4):
        for group, stem in enumerate(stems):
            prompt = np.concatenate([stem, rng.integers(0, 1000, 20, dtype=np.int32)])
            own: list[bytes] = []
            keys.extend(own, Request("r", prompt), prompt)
            home = affinity.choose(own, IDLE)
            affinity.record(home, own)
            homes.setdefault(group, set()).add(home)
    assert all(len(home) == 1 for home in homes.values())
