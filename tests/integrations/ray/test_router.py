"""The choice of a replica, with Ray's router around it but no cluster."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from ray.serve.request_router import PendingRequest, RunningReplica

from paceline.integrations.ray.everywhere import ForwardedRequest
from paceline.integrations.ray.router import PrefixRouter


class NamedReplica:
    """A replica as far as a router looks at it."""

    def __init__(self, name: str) -> None:
        self.replica_id = name


class QueueLengths(dict[str, int]):
    """The load of each replica, as Ray's router knows it."""


class RouterWithLoads(PrefixRouter):
    """Ray creates routers with what only a cluster has."""

    def __init__(self) -> None:
        self.loads = QueueLengths()
        self.initialize_state()

    @property
    def replica_queue_len_cache(self) -> Any:
        return self.loads


A, B, C = map(NamedReplica, "abc")


def asked(
    router: PrefixRouter, replicas: Sequence[NamedReplica], keys: Sequence[bytes] | None
) -> list[set[str]]:
    """The names of the chosen replica, and of those that are asked if it refuses."""
    arguments = [] if keys is None else [ForwardedRequest(keys, {}, b"")]
    pending = cast("Any", PendingRequest)(arguments, {}, cast("Any", None), future=None)
    chosen = asyncio.run(router.choose_replicas(cast("list[RunningReplica]", [*replicas]), pending))
    assert pending.routing_context.should_backoff
    return [{cast("Any", one).replica_id for one in rank} for rank in chosen]


@pytest.fixture
def router() -> RouterWithLoads:
    return RouterWithLoads()


def test_a_prompt_goes_where_its_beginning_went(router: RouterWithLoads) -> None:
    (first,), others = asked(router, (A, B, C), [b"1", b"2"])
    for load in range(8):
        router.loads[first] = load
        assert asked(router, (A, B, C), [b"1", b"2", b"3"]) == [{first}, others]
    assert others == {"a", "b", "c"} - {first}


def test_a_busy_replica_gets_no_more(router: RouterWithLoads) -> None:
    (first,), _ = asked(router, (A, B), [b"1"])
    router.loads[first] = 100
    assert asked(router, (A, B), [b"1"])[0] != {first}


def test_without_keys_the_load_decides(router: RouterWithLoads) -> None:
    router.loads.update(a=3, b=2)
    assert asked(router, (A, B), [])[0] == {"b"}
    assert asked(router, (A, B), None)[0] == {"b"}


def test_a_replica_that_refused_a_prompt_is_not_the_only_one_that_knows_it(
    router: RouterWithLoads,
) -> None:
    asked(router, (A,), [b"1"])
    request = cast("Any", PendingRequest)(
        [ForwardedRequest([b"1", b"2"], {}, b"")], {}, cast("Any", None), future=None
    )
    router.on_request_routed(request, cast("Any", "b"), None)
    assert asked(router, (A, B), [b"1", b"2"])[0] == {"b"}


def test_replicas_that_are_gone_are_forgotten(router: RouterWithLoads) -> None:
    asked(router, (A,), [b"1"])
    asked(router, (B,), [b"2"])
    router.loads["a"] = 1
    assert asked(router, (A, B), [b"1"])[0] == {"b"}
