"""What a client asked for, and how far it has got."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from paceline.core.arrays import I32
from paceline.core.errors import RequestError
from paceline.core.events import Happened, Moment


class Finish(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


FINISHED_STATE = {
    Finish.STOP: "FINISHED_STOPPED",
    Finish.LENGTH: "FINISHED_LENGTH",
    Finish.ABORT: "FINISHED_ABORTED",
    Finish.ERROR: "FINISHED_ERROR",
}
PARKED_STATE = {"grammar": "WAITING_FOR_GRAMMAR", "remote_kv": "WAITING_FOR_REMOTE_KV"}


@dataclass(frozen=True, slots=True)
class Item:
    """A multimodal item inside a prompt, named by its content."""

    identity: str
    offset: int  # first position it covers
    length: int


def token_array(ids: Iterable[int], what: str) -> I32:
    """Token ids as a read-only array, or a RequestError that says what is wrong."""
    try:
        given = ids if isinstance(ids, list | tuple) else list(ids)
        packed = struct.pack(f"{len(given)}i", *given)  # several times faster than numpy
    except (TypeError, struct.error) as error:
        raise RequestError(f"{what} must be a list of token ids: {error}") from None
    found = np.frombuffer(packed, np.int32)
    if len(found) and int(found.min()) < 0:
        raise RequestError(f"{what} has a negative token id: {int(found.min())}")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """An immutable ask. Nothing that changes while it runs is kept here.

    id                who it is, to the client
    prompt            token ids, in any sequence; kept as a read-only array
    max_tokens        most tokens to generate; None: as many as the model length allows
    min_tokens        below this many, only the length limits end it
    eos_token_ids     end tokens of the model, which `ignore_eos` turns off
    stop_token_ids    further tokens that end it
    seed              of its samples
    priority          smaller goes first
    arrival           seconds on the scheduler's clock; None: the time of submission
    tenant            on whose account it runs
    deadline          seconds from arrival to the first token
    token_deadline    seconds from each token to the next
    cache_salt        only requests of the same salt share cached content
    adapter           the name of the adapter it runs with
    drafts            draft tokens expected per step; None: the engine's setting
    items             multimodal items in the prompt
    """

    id: str
    prompt: I32
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    priority: int = 0
    arrival: float | None = None
    tenant: str = ""
    deadline: float | None = None
    token_deadline: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    drafts: int | None = None
    items: tuple[Item, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"a request id is a non-empty string, not {self.id!r}")
        fix = object.__setattr__
        fix(self, "prompt", token_array(self.prompt, f"the prompt of {self.id!r}"))
        for name in ("eos_token_ids", "stop_token_ids"):
            if ids := getattr(self, name):
                fix(self, name, tuple(token_array(ids, f"{name} of {self.id!r}").tolist()))
        self._refuse_nonsense()

    def _refuse_nonsense(self) -> None:
        problem = ""
        if len(self.prompt) == 0:
            problem = "the prompt is empty"
        elif self.max_tokens is not None and self.max_tokens < 1:
            problem = f"max_tokens is {self.max_tokens}; at least 1 is needed"
        elif not 0 <= self.min_tokens <= (self.max_tokens or self.min_tokens):
            problem = f"min_tokens is {self.min_tokens}; it must lie in 0..{self.max_tokens}"
        elif any(d is not None and not d > 0 for d in (self.deadline, self.token_deadline)):
            problem = "a deadline must be positive"
        elif self.drafts is not None and self.drafts < 0:
            problem = f"drafts is {self.drafts}; it cannot be negative"
        if problem:
            raise RequestError(f"request {self.id!r}: {problem}")

    def stops_at(self, token: int, outputs: int) -> bool:
        """Does `token`, the last of `outputs` generated ones, end this request?"""
        if outputs < self.min_tokens:
            return False
        if token in self.eos_token_ids and not self.ignore_eos:
            return True
        return token in self.stop_token_ids


@dataclass(slots=True, eq=False)
class Sequence:
    """The progress of one request.

    While `slot >= 0` the live counters are columns of the SlotTable and `tokens` is
    stale by design; leaving the slot writes it back.
    """

    request: Request
    serial: int  # identity inside; rises with submission
    limit: int  # tokens at which it ends: prompt + max_tokens, within the model length
    arrival: float
    tokens: I32  # every token known
    keys: list[bytes] = field(default_factory=list[bytes])  # one per full block of tokens
    slot: int = -1
    parked: str = ""  # what it waits for, while it cannot run at all
    finish: Finish | None = None
    preemptions: int = 0
    cached: int = 0  # prompt tokens found in the cache when first admitted
    life: list[Moment] = field(default_factory=list[Moment])

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def queued_at(self) -> float:
        """When it was submitted, on the scheduler's clock."""
        return self.life[0].time

    @property
    def started(self) -> bool:
        """Was it ever admitted?"""
        return any(moment.happened is Happened.ADMITTED for moment in self.life)

    @property
    def state(self) -> str:
        """Derived from where the sequence is, never stored."""
        if self.finish is not None:
            return FINISHED_STATE[self.finish]
        if self.slot >= 0:
            return "RUNNING"
        if self.parked:
            return PARKED_STATE.get(self.parked, "WAITING")
        return "PREEMPTED" if self.preemptions else "WAITING"
