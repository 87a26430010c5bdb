"""Small frozen records of what happened, and how messages are declared."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def message(*, eq: bool = False) -> Callable[[type[T]], type[T]]:
    """Declare a frozen, slotted dataclass of many fields that is cheap to build.

    `dataclass(frozen=True)` sets each field by a call, which takes ten times as long as to assign
    it. A message belongs to a subclass that is not frozen until its fields are assigned.
    """

    def declare(kind: type[T]) -> type[T]:
        body = {**vars(kind), "__post_init__": None}  # so that `assign` calls it at the end
        assign: Callable[..., None] = dataclass(type(kind.__name__, (), body)).__init__
        frozen: Any = dataclass(frozen=True, slots=True, eq=eq)(kind)
        check: Callable[[Any], None] | None = getattr(frozen, "__post_init__", None)
        set_attribute = object.__setattr__

        def freeze(self: Any) -> None:
            if check is not None:
                check(self)
            self.__class__ = frozen

        unfrozen = type(
            kind.__name__,
            (frozen,),
            {
                "__slots__": (),
                "__setattr__": set_attribute,
                "__delattr__": object.__delattr__,
                "__post_init__": freeze,
            },
        )

        @wraps(assign)
        def build(self: Any, *values: Any, **named: Any) -> None:
            set_attribute(self, "__class__", unfrozen)
            assign(self, *values, **named)

        frozen.__init__ = build
        return frozen

    return declare


class Happened(Enum):
    """The turns a request's life can take."""

    SUBMITTED = "submitted"
    PARKED = "parked"
    WOKEN = "woken"
    ADMITTED = "admitted"
    RESUMED = "resumed"
    EVICTED = "partly evicted"
    CONTINUED = "continued"
    FORKED = "forked"
    FIRST_TOKEN = "first token"
    PREEMPTED = "preempted"
    SWAPPED = "swapped out"
    RETURNED = "swapped in"
    LOADED = "loaded from host memory"
    FETCHED = "loaded by a connector"
    NOT_FETCHED = "not loaded by a connector"
    DEMOTED = "lost on the host"
    DRAFTED = "drafted"
    MISSED = "missed a target"
    FINISHED = "finished"


class Moment(NamedTuple):
    """One turn in the life of one request.

    `amount` is what the turn is measured in: requests ahead when submitted, cached
    tokens when admitted or resumed, tokens of another engine when continued, sequences when
    forked, blocks moved when swapped out or in, tokens when loaded, fetched or evicted, accepted
    drafts when drafted, tokens known otherwise. `cause` names the reason, or the request that was
    the reason; of drafts, how many there were; of fetched tokens, the connector and the time that
    it took.
    """

    happened: Happened
    time: float  # seconds, on the caller's clock
    step: int
    amount: int = 0
    cause: str = ""


Medium = Literal["GPU", "CPU", "STORAGE"]
"""Where content is, in vLLM's words: on the device (also a CPU), in host memory, in files."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A full block became findable under `key`; no other block of the medium had that key."""

    key: bytes
    parent: bytes | None  # None for the first block of a sequence
    tokens: tuple[int, ...]
    adapter: str
    salt: str = ""
    images: tuple[tuple[str, int], ...] = ()  # identity and offset of each image in the block
    medium: Medium = "GPU"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """No block of the medium is findable under `key` any more."""

    key: bytes
    medium: Medium = "GPU"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Every key of every medium was forgotten at once."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


Stage = Literal["queue", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Timings:
    """How long each stage of a request took; a stage that was not reached took 0 s.

    The stages are the whole time, unless another engine had the request and died.
    """

    queue_s: float = 0.0  # from arrival, or from the move, to the first admission
    prefill_s: float = 0.0  # from there to the first token
    decode_s: float = 0.0  # from there to the end
    total_s: float = 0.0
    preemptions: int = 0
    reached: Stage = "decode"  # its last stage

    @property
    def staged(self) -> bool:
        """Is it known how the time is divided? It is not if the front end cut the request."""
        return self.total_s == 0 or self.queue_s + self.prefill_s + self.decode_s > 0


NO_TIMINGS = Timings()
