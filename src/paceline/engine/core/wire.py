"""Messages as bytes, for the border between processes: ids and arrays, nothing executable."""

from dataclasses import asdict, fields
from typing import Any

import msgspec
import numpy as np

from paceline.core.arrays import F32, I32
from paceline.core.errors import ConfigError, PacelineError, QueueFull, RequestError
from paceline.core.plan import Candidates, Ended, PromptScores
from paceline.core.request import Item, Request
from paceline.core.sampling import Sampling
from paceline.engine.core.messages import (
    Capacity,
    Delivery,
    EngineFailed,
    Question,
    Refused,
)
from paceline.engine.settings import EngineSettings

ERRORS: dict[str, type[PacelineError]] = {
    kind.__name__: kind for kind in (ConfigError, EngineFailed, QueueFull, RequestError)
}
REQUEST_FIELDS = [one for one in fields(Request) if one.name not in ("prompt", "sampling")]
SAMPLING_FIELDS = fields(Sampling)


class Fault(msgspec.Struct, array_like=True, frozen=True):
    """An error, by the name of its class."""

    kind: str
    message: str

    @staticmethod
    def of(error: Exception) -> "Fault":
        kind = type(error).__name__
        return Fault(kind, str(error)) if kind in ERRORS else Fault("EngineFailed", repr(error))

    def error(self) -> PacelineError:
        return ERRORS[self.kind](self.message)


class Build(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message to a core: what to run, as `module:function` with its arguments."""

    factory: str
    model: str
    settings: dict[str, Any]
    engine: dict[str, Any]  # settings of the step loop

    @staticmethod
    def of(factory: str, model: str, settings: dict[str, Any], engine: EngineSettings) -> "Build":
        return Build(factory, model, settings, asdict(engine))


class Submitted(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A request; of its settings only those that are not the default."""

    prompt: bytes
    settings: dict[str, Any]
    sampling: dict[str, Any]
    parked: str = ""  # the reason; empty: it waits


class Aborted(msgspec.Struct, tag=True, array_like=True, frozen=True):
    request_id: str
    child: int | None = None


class Parked(msgspec.Struct, tag=True, array_like=True, frozen=True):
    request_id: str
    reason: str


class Woken(msgspec.Struct, tag=True, array_like=True, frozen=True):
    request_id: str


class Questioned(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    question: Question


class Close(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The last message to a core."""


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message of a core: it is built and so large, or cannot be built."""

    capacity: Capacity | None = None
    fault: Fault | None = None


class Answered(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    value: Any = None
    fault: Fault | None = None


class Died(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The last message of a core that made a mistake."""

    reason: str


class Logged(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A line for the log, which the parent keeps."""

    name: str
    level: int
    text: str


class Table(msgspec.Struct, array_like=True, frozen=True):
    """A matrix by rows."""

    rows: int
    width: int
    cells: bytes

    @staticmethod
    def of(matrix: I32 | F32) -> "Table":
        return Table(len(matrix), matrix.shape[1], matrix.tobytes())

    def ints(self) -> I32:
        return np.frombuffer(self.cells, np.int32).reshape(self.rows, self.width)

    def floats(self) -> F32:
        return np.frombuffer(self.cells, np.float32).reshape(self.rows, self.width)


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    request_id: str
    fault: Fault


class Scored(msgspec.Struct, array_like=True, frozen=True):
    """Scores of a prompt, column by column."""

    request_id: str
    serial: int
    first: int
    logprob: bytes
    rank: bytes
    ids: Table
    values: Table

    @staticmethod
    def of(scores: PromptScores) -> "Scored":
        return Scored(
            scores.request_id,
            scores.serial,
            scores.first,
            scores.logprob.tobytes(),
            scores.rank.tobytes(),
            Table.of(scores.ids),
            Table.of(scores.values),
        )

    def scores(self) -> PromptScores:
        return PromptScores(
            self.request_id,
            self.serial,
            self.first,
            np.frombuffer(self.logprob, np.float32),
            np.frombuffer(self.rank, np.int32),
            self.ids.ints(),
            self.values.floats(),
        )


class Delivered(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A delivery, column by column."""

    time: float
    request_id: list[str]
    child: bytes
    ids: Table
    count: bytes
    logprob: Table | None
    candidates: tuple[Table, Table] | None
    ended: tuple[Ended, ...]
    refused: tuple[Refusal, ...]
    prompt: tuple[Scored, ...] = ()


ToCore = Build | Submitted | Aborted | Parked | Woken | Questioned | Close
FromCore = Ready | Answered | Delivered | Died | Logged


def plain(value: Any) -> Any:
    """Scalars of numpy's, and mappings that may not be changed."""
    scalar: Any = value
    return scalar.item() if isinstance(value, np.generic) else dict(value)


encoder = msgspec.msgpack.Encoder(enc_hook=plain)
to_core = msgspec.msgpack.Decoder(ToCore)
from_core = msgspec.msgpack.Decoder(FromCore)


def submitted(request: Request, parked: str = "") -> Submitted:
    sampling = request.sampling
    return Submitted(
        request.prompt.tobytes(),
        changed(request, REQUEST_FIELDS),
        changed(sampling, SAMPLING_FIELDS),
        parked,
    )


def changed(message: Any, settings: Any) -> dict[str, Any]:
    found = {one.name: (getattr(message, one.name), one.default) for one in settings}
    return {name: value for name, (value, default) in found.items() if value != default}


def request_of(message: Submitted) -> Request:
    prompt = np.frombuffer(message.prompt, np.int32)
    settings = dict(message.settings)
    items = tuple(Item(**one) for one in settings.pop("items", ()))
    return Request(prompt=prompt, sampling=Sampling(**message.sampling), items=items, **settings)


def delivered(one: Delivery) -> Delivered:
    found = one.candidates
    return Delivered(
        one.time,
        one.request_id.tolist(),
        one.child.tobytes(),
        Table.of(one.ids),
        one.count.tobytes(),
        None if one.logprob is None else Table.of(one.logprob),
        None if found is None else (Table.of(found.ids), Table.of(found.logprob)),
        one.ended,
        tuple(Refusal(each.request_id, Fault.of(each.error)) for each in one.refused),
        tuple(Scored.of(each) for each in one.prompt),
    )


def delivery_of(message: Delivered) -> Delivery:
    names = np.empty(len(message.request_id), object)
    names[:] = message.request_id
    found = message.candidates
    return Delivery(
        message.time,
        names,
        np.frombuffer(message.child, np.int32),
        message.ids.ints(),
        np.frombuffer(message.count, np.int32),
        None if message.logprob is None else message.logprob.floats(),
        None if found is None else Candidates(found[0].ints(), found[1].floats()),
        message.ended,
        tuple(Refused(each.request_id, each.fault.error()) for each in message.refused),
        tuple(each.scores() for each in message.prompt),
    )
