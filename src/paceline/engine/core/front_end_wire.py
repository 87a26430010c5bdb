"""Messages as bytes, between the owner of a core and the front ends that share the core."""

from typing import Any, Literal

import msgspec

from paceline.engine.core.messages import Capacity
from paceline.engine.core.wire import (
    AbortMessage,
    EncodedDelivery,
    EncodedError,
    EncodedRequest,
    NumberedAnswer,
    NumberedQuestion,
    ParkMessage,
    WakeMessage,
)

PeerVerb = Literal[
    "abort",
    "abort_all",
    "parts",
    "response",
    "events",
    "cancel",
    "remove",
    "conversation",
    "adapters",
]


class FrontEndBuild(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message to a front end."""

    number: int  # of the process; no two front ends of a core have the same one
    capacity: Capacity
    settings: dict[str, Any]


class FrontEndReady(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message of a front end: it accepts connections, or why it cannot."""

    fault: EncodedError | None = None


class CoreHealth(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Why the core is not healthy, and why each of its engines is not; empty if they are."""

    trouble: str
    troubles: tuple[str, ...]


class CoreDeath(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The core has died, and its requests are lost; its health from now on."""

    reason: str
    health: CoreHealth


class PeerQuestion(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A question to the other front ends about requests of theirs."""

    number: int
    verb: PeerVerb
    names: tuple[str, ...]


class PeerAnswer(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    value: Any


class DrainFrontEnd(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The server shuts down: finish the open requests, or, in a hurry, end them."""

    hurry: bool = False


ToFrontEnd = (
    FrontEndBuild
    | EncodedDelivery
    | NumberedAnswer
    | CoreHealth
    | CoreDeath
    | PeerQuestion
    | DrainFrontEnd
)
FromFrontEnd = (
    FrontEndReady
    | EncodedRequest
    | AbortMessage
    | ParkMessage
    | WakeMessage
    | NumberedQuestion
    | PeerQuestion
    | PeerAnswer
)

to_front_end = msgspec.msgpack.Decoder(ToFrontEnd)
from_front_end = msgspec.msgpack.Decoder(FromFrontEnd)
