"""Asks the other replicas of a deployment."""

from functools import cached_property
from typing import Any, cast

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from paceline.engine.core.front_end_wire import PeerVerb

ANSWER_S = 5.0  # for the other replicas to answer


class RayPeers:
    """Each replica has its own engine and its own open requests and stored responses. If a replica
    does not answer, the others do."""

    def __init__(self) -> None:
        self._own = serve.get_replica_context().replica_id.unique_id

    @cached_property
    def _replicas(self) -> Any:
        """Made when it is needed: while a replica starts, its deployment may not exist yet."""
        context, untyped = serve.get_replica_context(), cast("Any", serve)
        return untyped.get_deployment_handle(context.deployment, context.app_name)

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        asked = self._replicas.broadcast("answer_peer", self._own, verb, names)
        try:
            answers = await asked.results_async(timeout_s=ANSWER_S, return_exceptions=True)
        except (TimeoutError, RayServeException, RayError):
            return []
        return [one for one in answers if isinstance(one, list)]
