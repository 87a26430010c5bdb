"""Messages as bytes, between two processes: ids and arrays, nothing executable."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from paceline.core.arrays import F32, I32
from paceline.core.errors import (
    ConfigError,
    GrammarTooCostly,
    PacelineError,
    QueueFull,
    RequestError,
)
from paceline.core.plan import Candidates, Ended
from paceline.core.pooling import PooledSpan, PromptScores
from paceline.core.request import Request
from paceline.core.sampling import NO_BIAS, Sampling
from paceline.engine.loop.messages import (
    Abort,
    Capacity,
    Delivery,
    EngineFailed,
    EngineUnavailable,
    Park,
    Question,
    Refused,
    Wake,
)
from paceline.engine.settings import ENGINE_COMPONENTS, EngineSettings

ERRORS: dict[str, type[PacelineError]] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        EngineFailed,
        EngineUnavailable,
        GrammarTooCostly,
        QueueFull,
        RequestError,
    )
}
T = TypeVar("T")


class EncodedError(msgspec.Struct, array_like=True, frozen=True):
    """An error, by the name of its class."""

    kind: str
    message: str

    @staticmethod
    def of(error: BaseException) -> "EncodedError":
        kind = type(error).__name__
        return (
            EncodedError(kind, str(error))
            if kind in ERRORS
            else EncodedError("EngineFailed", repr(error))
        )

    def error(self) -> PacelineError:
        return ERRORS[self.kind](self.message)


class Build(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message to a core: the factory as `module:function`, with its arguments."""

    factory: str
    model: str
    settings: dict[str, Any]  # read them with `as_declared`
    engine: EngineSettings


class EncodedRequest(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A request as the values of its fields, and what a process on its way needs of it."""

    id: str
    handle: int  # instead of that among the values
    width: int
    tokens: int  # of the prompt
    rank: int | None
    values: msgspec.Raw
    parked: str = ""  # the reason

    @staticmethod
    def of(request: Request, parked: str = "") -> "EncodedRequest":
        header = request.id, request.handle, request.width, len(request.prompt)
        rank = request.data_parallel_rank
        return EncodedRequest(*header, rank, encode_request(request), parked)

    def request(self) -> Request:
        return decode_request(self.values, self.handle)


class AbortMessage(msgspec.Struct, tag=True, array_like=True, frozen=True):
    command: Abort


class ParkMessage(msgspec.Struct, tag=True, array_like=True, frozen=True):
    command: Park


class WakeMessage(msgspec.Struct, tag=True, array_like=True, frozen=True):
    command: Wake


class NumberedQuestion(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    question: Question


class Close(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The last message to a core."""


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message of a core: its capacity, or why it cannot be built."""

    capacity: Capacity | None = None
    fault: EncodedError | None = None


class NumberedAnswer(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    value: Any = None
    fault: EncodedError | None = None

    @staticmethod
    def of(number: int, answer: Future[Any]) -> "NumberedAnswer":
        """The value or the error of an answer that is there."""
        if (error := answer.exception()) is not None:
            return NumberedAnswer(number, fault=EncodedError.of(error))
        return NumberedAnswer(number, answer.result())


class Died(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What a core that failed says before it closes."""

    reason: str


class LogMessage(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A log record for the parent."""

    name: str
    level: int
    text: str


class EncodedMatrix(msgspec.Struct, array_like=True, frozen=True):
    """A matrix, row by row."""

    rows: int
    width: int
    cells: bytes

    @staticmethod
    def of(matrix: I32 | F32) -> "EncodedMatrix":
        return EncodedMatrix(len(matrix), matrix.shape[1], matrix.tobytes())

    def ints(self) -> I32:
        return np.frombuffer(self.cells, np.int32).reshape(self.rows, self.width)

    def floats(self) -> F32:
        return np.frombuffer(self.cells, np.float32).reshape(self.rows, self.width)


class EncodedRefusal(msgspec.Struct, array_like=True, frozen=True):
    request_id: str
    fault: EncodedError


class EncodedScores(msgspec.Struct, array_like=True, frozen=True):
    """Scores of a prompt, in columns."""

    request_id: str
    serial: int
    first: int
    logprob: bytes
    rank: bytes
    ids: EncodedMatrix
    values: EncodedMatrix

    @staticmethod
    def of(scores: PromptScores) -> "EncodedScores":
        return EncodedScores(
            scores.request_id,
            scores.serial,
            scores.first,
            scores.logprob.tobytes(),
            scores.rank.tobytes(),
            EncodedMatrix.of(scores.ids),
            EncodedMatrix.of(scores.values),
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


class EncodedSpan(msgspec.Struct, array_like=True, frozen=True):
    """Hidden states of a prompt."""

    request_id: str
    serial: int
    first: int
    count: int
    total: bytes

    @staticmethod
    def of(span: PooledSpan) -> "EncodedSpan":
        header = span.request_id, span.serial, span.first, span.count
        return EncodedSpan(*header, span.total.tobytes())

    def span(self) -> PooledSpan:
        total = np.frombuffer(self.total, np.float32)
        return PooledSpan(self.request_id, self.serial, self.first, self.count, total)


class EncodedDelivery(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A delivery, in columns."""

    time: float
    handle: bytes
    ids: EncodedMatrix
    count: bytes
    logprob: EncodedMatrix | None
    candidates: tuple[EncodedMatrix, EncodedMatrix] | None
    ended: tuple[Ended, ...]
    refused: tuple[EncodedRefusal, ...]
    prompt: tuple[EncodedScores, ...] = ()
    pooled: tuple[EncodedSpan, ...] = ()
    engine: int = 0
    broken: str = ""


ToCore = (
    Build | EncodedRequest | AbortMessage | ParkMessage | WakeMessage | NumberedQuestion | Close
)
FromCore = Ready | NumberedAnswer | EncodedDelivery | Died | LogMessage


def plain(value: Any) -> Any:
    """The content of numpy's arrays and scalars, and of read-only mappings."""
    given: Any = value
    if isinstance(value, np.ndarray):
        return given.tobytes()
    return given.item() if isinstance(value, np.generic) else dict(value)


def declared_types(components: Iterable[type[Any]]) -> dict[str, Any]:
    """The type of each setting, by name."""
    found: dict[str, Any] = {}
    for component in components:
        hints = get_type_hints(component)
        for one in fields(component):
            found.setdefault(one.name, hints[one.name])
    return found


def as_declared(
    settings: Mapping[str, Any],
    components: Iterable[type[Any]] = ENGINE_COMPONENTS.values(),
) -> dict[str, Any]:
    """Settings that came from another process as plain data, with the types that they declare: a
    tuple was a list on the way, and a mapping, an enum or a dataclass was something else, too.

    A value that is not of its type stays as it is: its component says what is wrong with it.
    """
    types = declared_types(components)
    return {name: of_type(value, types.get(name, Any)) for name, value in settings.items()}


def of_type(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, dec_hook=read_only)
    except msgspec.ValidationError:
        return value


def read_only(kind: Any, value: Any) -> Any:
    """A read-only mapping, of a type that msgspec does not know."""
    if get_origin(kind) is not MappingProxyType:
        raise NotImplementedError(f"settings cannot be of type {kind}")
    key, item = get_args(kind)
    return MappingProxyType(msgspec.convert(value, dict[key, item]))


encoder = msgspec.msgpack.Encoder(enc_hook=plain)
to_core = msgspec.msgpack.Decoder(ToCore, dec_hook=read_only)
from_core = msgspec.msgpack.Decoder(FromCore)

# A request is encoded once, by the values of its fields in their order. The front end checked them
# when it built the request, so the core restores the objects without checking again.
SAMPLING_NAMES = tuple(one.name for one in fields(Sampling))
REQUEST_NAMES = tuple(one.name for one in fields(Request) if one.name != "sampling")
sampling_values, request_values = attrgetter(*SAMPLING_NAMES), attrgetter(*REQUEST_NAMES)
SENT_AS: dict[str, Any] = {"prompt": bytes, "priority": int | float}


def types_of(kind: Any, names: tuple[str, ...]) -> Any:
    """The type of a tuple with the values of some fields."""
    types = {one.name: one.type for one in fields(kind)} | SENT_AS
    return tuple[tuple(types[name] for name in names)]


requests = msgspec.msgpack.Decoder(
    tuple[types_of(Request, REQUEST_NAMES), types_of(Sampling, SAMPLING_NAMES)]
)


def encode_request(request: Request) -> msgspec.Raw:
    values = request_values(request), sampling_values(request.sampling)
    return msgspec.Raw(encoder.encode(values))


def setters_of(kind: Any, names: tuple[str, ...]) -> list[Callable[[Any, Any], None]]:
    """The functions that set some fields; the class is frozen, and has slots."""
    return [getattr(kind, name).__set__ for name in names]


PROMPT, HANDLE = map(REQUEST_NAMES.index, ("prompt", "handle"))
LOGIT_BIAS = SAMPLING_NAMES.index("logit_bias")
SAMPLING_SETTERS = setters_of(Sampling, SAMPLING_NAMES)
REQUEST_SETTERS = setters_of(Request, (*REQUEST_NAMES, "sampling"))


def decode_request(encoded: msgspec.Raw, handle: int) -> Request:
    of_request, of_sampling = requests.decode(encoded)
    values, sampling = [*of_request], [*of_sampling]
    values[PROMPT], values[HANDLE] = np.frombuffer(values[PROMPT], np.int32), handle
    sampling[LOGIT_BIAS] = MappingProxyType(sampling[LOGIT_BIAS]) or NO_BIAS
    values.append(restored(Sampling, SAMPLING_SETTERS, sampling))
    return restored(Request, REQUEST_SETTERS, values)


def restored(kind: type[T], setters: list[Callable[[Any, Any], None]], values: list[Any]) -> T:
    """An object from the values of all its fields, without the checks of `__post_init__`."""
    made = object.__new__(kind)
    for set_value, value in zip(setters, values, strict=True):
        set_value(made, value)
    return made


def encode_delivery(one: Delivery) -> EncodedDelivery:
    found = one.candidates
    return EncodedDelivery(
        one.time,
        one.handle.tobytes(),
        EncodedMatrix.of(one.ids),
        one.count.tobytes(),
        None if one.logprob is None else EncodedMatrix.of(one.logprob),
        None if found is None else (EncodedMatrix.of(found.ids), EncodedMatrix.of(found.logprob)),
        one.ended,
        tuple(EncodedRefusal(each.request_id, EncodedError.of(each.error)) for each in one.refused),
        tuple(EncodedScores.of(each) for each in one.prompt),
        tuple(EncodedSpan.of(each) for each in one.pooled),
        one.engine,
        one.broken,
    )


def decode_delivery(message: EncodedDelivery) -> Delivery:
    found = message.candidates
    return Delivery(
        message.time,
        np.frombuffer(message.handle, np.int64),
        message.ids.ints(),
        np.frombuffer(message.count, np.int32),
        None if message.logprob is None else message.logprob.floats(),
        None if found is None else Candidates(found[0].ints(), found[1].floats()),
        message.ended,
        tuple(Refused(each.request_id, each.fault.error()) for each in message.refused),
        tuple(each.scores() for each in message.prompt),
        tuple(each.span() for each in message.pooled),
        message.engine,
        message.broken,
    )
