"""The other front ends of a server, which share its core."""

from typing import Any, Protocol

from paceline.engine.core.front_end_wire import PeerVerb


class Peers(Protocol):
    """The front ends beside this one."""

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        """The answer of each."""
        ...


class NoPeers:
    """This front end is the only one."""

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        return []


NO_PEERS = NoPeers()
