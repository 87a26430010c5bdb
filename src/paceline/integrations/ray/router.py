"""Chooses a replica for each request: one that had the beginning of its prompt, unless it is
busy."""

from collections.abc import Sequence, Set
from random import Random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from paceline.engine.replicas.router import PrefixAffinity
from paceline.integrations.ray.everywhere import ForwardedRequest

MOST_BLOCKS = 65536  # of text, that are remembered of each replica


class PrefixRouter(RequestRouter):
    """The first argument of a call is a `ForwardedRequest`, which has the keys of its prompt.

    The load of a replica is the number of its open requests, as Ray's router last heard of it: with
    the answer to each request, or from a probe. A replica that is full refuses a request; two
    others, drawn at random, are asked next, and Ray takes the one with the lower load.
    """

    def initialize_state(self, **_: Any) -> None:
        self._random = Random()
        self._affinity = PrefixAffinity[ReplicaID](MOST_BLOCKS, random=self._random)
        self._known: set[ReplicaID] = set()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The chosen replica, and then two others."""
        replicas = {one.replica_id: one for one in candidate_replicas}
        self._forget_all_but(replicas.keys())
        if pending_request is None:
            return [self._two_of(candidate_replicas)]
        # Without it, Ray asks again at once when all replicas have refused the request.
        pending_request.routing_context.should_backoff = True
        keys = keys_of(pending_request)
        chosen = self._affinity.choose(keys, {one: self._load(one) for one in replicas})
        # Requests that come before this one has arrived go the same way.
        self._affinity.record(chosen, keys)
        others = [one for name, one in replicas.items() if name != chosen]
        return [[replicas[chosen]], self._two_of(others)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        self._affinity.record(replica_id, keys_of(pending_request))

    def _load(self, replica: ReplicaID) -> float:
        """0 if nothing was heard for a while: then few requests were sent there."""
        return self.replica_queue_len_cache.get(replica) or 0

    def _two_of(self, replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
        return self._random.sample(replicas, min(2, len(replicas)))

    def _forget_all_but(self, replicas: Set[ReplicaID]) -> None:
        for gone in self._known - replicas:
            self._affinity.forget(gone)
        self._known = set(replicas)


def keys_of(pending: PendingRequest) -> Sequence[bytes]:
    """Empty for calls that are not requests of clients."""
    (first, *_) = (*pending.args, None)
    return first.keys if isinstance(first, ForwardedRequest) else ()
