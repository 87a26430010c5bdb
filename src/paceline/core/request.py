"""What a client asked for, and how far it has got."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from math import inf, isfinite
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from paceline.core.arrays import I32, TokenIds, plain, token_array
from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.events import Happened, Moment, message
from paceline.core.kv_transfer import unsendable
from paceline.core.multimodal import ImageInput, wrong_images
from paceline.core.pooling import LAST, POOLING_KINDS
from paceline.core.sampling import GREEDY, Sampling


class Finish(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


FINISHED_STATE = {
    Finish.STOP: "FINISHED_STOPPED",
    Finish.LENGTH: "FINISHED_LENGTH",
    Finish.ABORT: "FINISHED_ABORTED",
    Finish.TIMEOUT: "FINISHED_TIMED_OUT",
    Finish.ERROR: "FINISHED_ERROR",
}
MOST_PRIORITY = 2.0**53  # either way, exact in every form that carries it
MOST_PENALTY = 10.0  # either way: what a length is raised to
PARKED_STATE = {"grammar": "WAITING_FOR_GRAMMAR", "remote_kv": "WAITING_FOR_REMOTE_KV"}


def child_label(request_id: str, child: int) -> str:
    """What a row is called: the request's id, or a child of it."""
    return request_id if child < 0 else f"{child}_{request_id}"


NO_TOKENS: tuple[int, ...] = ()
TOKENS = ("prompt", "eos_token_ids", "stop_token_ids")  # fields that become arrays or tuples of ids


@message()
class Request:
    """A request to the scheduler: token ids, and when to end. It never changes.

    A wrong value raises RequestError.

    ```py
    Request(id="a", prompt=[5, 6, 7], max_tokens=4)
    Request(id="b", prompt=range(100), n=3, priority=-1, tenant="team-7")
    ```

    Attributes:
        id: Identity of the request to the client.
        prompt: Token ids, in any sequence; kept as a read-only array.
        max_tokens: Most tokens to generate. None: up to `max_model_len`.
        min_tokens: No end token ends the request before this many tokens.
        ignore_eos: Continue after the tokens of `eos_token_ids`.
        eos_token_ids: End tokens of the model.
        stop_token_ids: Further tokens that end the request.
        seed: Seed of its samples.
        priority: Smaller goes first under the policy `priority`.
        arrival: Seconds on the scheduler's clock. None: the time of submission.
        tenant: The account that the policy `fair` charges.
        origin: The body that it came in with others, which share slots. "": it came alone.
        session: The conversation that it continues, for the eviction `sessions`. "": known by its
            prefix alone.
        deadline: Seconds from arrival to the first token.
        token_deadline: Seconds from each token to the next.
        cache_salt: Only requests with the same salt share cached prefixes.
        adapter: Name of the adapter that it runs with.
        drafts: Draft tokens per step. None: the engine's setting.
        images: Images in the prompt.
        n: Sequences to return.
        best_of: Sequences to sample, of which the n likeliest are returned. None: n.
        beam_width: Number of beams. 0: no beam search.
        length_penalty: Beam search: scores are divided by the length to this power.
        early_stopping: Beam search: stop at `beam_width` finished beams (True), when a better one
            is unlikely (False), or only when none is possible ("never").
        sampling: How the runner chooses its tokens.
        constraint: What its tokens must follow. Its end tokens end it at once, because a grammar
            allows nothing after them: `min_tokens` and `ignore_eos` only put the end off.
        handle: What its tokens are reported under, besides its id: a number of the front end. Child
            c of several sequences is reported under `handle + c`. It decides nothing.
        pooling: Which hidden states of the prompt are reported: "last", "mean" or "cls". Its one
            token has no meaning then. "": none.
        reads_cache: Whether cached prefixes may be used instead of computing them.
        kv_transfer_params: Where its KV comes from or goes to, for the connector.
        generated: What its sequences generated in an engine that is gone: the tokens of each, and
            None for one that has ended. It continues after them. (): it is new.
        data_parallel_rank: Which of several engines runs it. None: any. It decides nothing here.
    """

    id: str
    prompt: TokenIds
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_token_ids: tuple[int, ...] = NO_TOKENS
    stop_token_ids: tuple[int, ...] = NO_TOKENS
    seed: int | None = None
    priority: int = 0
    arrival: float | None = None
    tenant: str = ""
    origin: str = ""
    session: str = ""
    deadline: float | None = None
    token_deadline: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    drafts: int | None = None
    images: tuple[ImageInput, ...] = ()
    n: int = 1
    best_of: int | None = None
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    sampling: Sampling = GREEDY
    constraint: Constraint | None = None
    handle: int = -1
    pooling: str = ""
    reads_cache: bool = True
    kv_transfer_params: Mapping[str, Any] | None = None
    generated: tuple[tuple[int, ...] | None, ...] = ()
    data_parallel_rank: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"a request id is a non-empty string, not {self.id!r}")
        fix = object.__setattr__
        fix(self, "prompt", token_array(self.prompt, f"the prompt of {self.id!r}"))
        for name in TOKENS[1:]:
            ids: Any = getattr(self, name)
            if ids is not NO_TOKENS:
                fix(self, name, tuple(token_array(ids, f"{name} of {self.id!r}").tolist()))
        problem = self._wrong_type() or self._wrong_number() or self._wrong_text()
        problem = problem or self._wrong_group() or unsendable(self.kv_transfer_params)
        if self.generated:
            problem = problem or self._wrong_continuation()
        if problem:
            raise RequestError(f"request {self.id!r}: {problem}")

    def _wrong_type(self) -> str:
        values: tuple[Any, ...] = TYPED_FIELDS(self)
        types = tuple(map(type, values))
        if types in RIGHT_TYPES:
            return ""
        for (name, kinds), value in zip(FIELD_TYPES.items(), values, strict=True):
            if type(value) not in kinds and type(plain(value)) not in kinds:
                allowed = " or ".join(kind.__name__ for kind in kinds)
                return f"{name} is {value!r}; it must be {allowed}"
        RIGHT_TYPES.add(types)
        return ""

    def _wrong_number(self) -> str:
        prompt, most, least = len(self.prompt), self.max_tokens, self.min_tokens
        if prompt == 0:
            return "the prompt is empty"
        if most is not None and most < 1:
            return f"max_tokens is {most}; at least 1 is needed"
        if least < 0:
            return f"min_tokens is {least}; it cannot be negative"
        if most is not None and least > most:
            return f"min_tokens is {least}; it must lie in 0..{most}"
        if self.deadline is not None and not self.deadline > 0:
            return f"deadline is {self.deadline}; it must be positive"
        if self.token_deadline is not None and not 0 < self.token_deadline < inf:
            return f"token_deadline is {self.token_deadline}; it must be positive and finite"
        if self.arrival is not None and not isfinite(self.arrival):
            return f"arrival is {self.arrival}; it must be a time"
        if not -MOST_PRIORITY <= self.priority <= MOST_PRIORITY:
            return f"priority is {self.priority}; it must lie in -2**53..2**53"
        if self.drafts is not None and self.drafts < 0:
            return f"drafts is {self.drafts}; it cannot be negative"
        return ""

    def _wrong_text(self) -> str:
        given = self.tenant or self.origin or self.cache_salt or self.adapter or self.session
        if not (given or self.images):
            return ""
        if problem := wrong_images(self.images, len(self.prompt)):
            return problem
        identities = (image.identity for image in self.images)
        names = (
            self.tenant,
            self.origin,
            self.session,
            self.cache_salt,
            self.adapter,
            *identities,
        )
        try:
            "".join(names).encode()
        except (TypeError, UnicodeEncodeError) as error:
            return f"a name is no text: {error}"
        return ""

    def _wrong_group(self) -> str:
        if self.pooling and (problem := self._wrong_pooling()):
            return problem
        if self.n == 1 and self.best_of is None and not self.beam_width:
            return ""
        if self.n < 1:
            return f"n is {self.n}; at least 1 is needed"
        if self.best_of is not None and self.best_of < self.n:
            return f"best_of is {self.best_of}; at least n ({self.n}) is needed"
        if self.beam_width and self.beam_width < max(self.n, 2):
            return (
                f"beam_width is {self.beam_width}; it must be at least 2, and at least n ({self.n})"
            )
        if self.beam_width and self.best_of not in (None, self.beam_width):
            return "best_of is for sampling; beam_width says how many beams there are"
        if self.early_stopping not in (True, False, "never"):
            return f'early_stopping is {self.early_stopping!r}; True, False or "never"'
        if not -MOST_PENALTY <= self.length_penalty <= MOST_PENALTY:
            return f"length_penalty is {self.length_penalty}; it must lie in [-10, 10]"
        return ""

    def _wrong_pooling(self) -> str:
        if self.pooling not in POOLING_KINDS:
            return f"pooling is {self.pooling!r}; it must be one of {', '.join(POOLING_KINDS)}"
        if self.max_tokens != 1 or self.width != 1 or self.constraint is not None:
            return "a request with pooling has max_tokens 1, one sequence and no constraint"
        if self.pooling != LAST and self.reads_cache:
            return f"pooling {self.pooling!r} needs the first position: set reads_cache to False"
        return ""

    def _wrong_continuation(self) -> str:
        found = [one for one in self.generated if one is not None]
        if len(self.generated) != self.width:
            return f"generated has {len(self.generated)} entries for {self.width} sequences"
        if not found:
            return "every sequence has ended; there is nothing to continue"
        if any(found) and self.silent:
            return "only the best sequences are returned, so none can be continued"
        longest = max(map(len, found))
        if self.max_tokens is not None and longest >= self.max_tokens:
            return f"{longest} tokens are generated already, and max_tokens is {self.max_tokens}"
        return ""

    # -- sequence groups ----------------------------------------------------

    @property
    def open_children(self) -> list[int]:
        """Which of its sequences have not ended."""
        ended = [child for child, one in enumerate(self.generated) if one is None]
        return [child for child in range(self.width) if child not in ended]

    def known(self, child: int) -> I32:
        """The tokens that one of its sequences has from the start."""
        if not (self.generated and (more := self.generated[child])):
            return self.prompt
        return token_array([*self.prompt.tolist(), *more], f"the output of {self.id!r}")

    @property
    def width(self) -> int:
        """Number of sequences that run at once for this request."""
        return self.beam_width or self.best_of or self.n

    @property
    def silent(self) -> bool:
        """Whether tokens are reported only at the end, when the best sequences are known."""
        return self.beam_width > 0 or self.width > self.n

    @property
    def candidates(self) -> int:
        """Continuations that each of its rows needs, so that all beams continue after any ends."""
        ends = len({*self.stop_token_ids, *(self.eos_token_ids if self.ends_at_eos else ())})
        return self.beam_width * max(2, 1 + ends)

    @property
    def ends_at_eos(self) -> bool:
        """Whether an end token of the model may end it."""
        return not self.ignore_eos or self.constraint is not None

    def without_content(self) -> "Request":
        """The same request without what its images are computed from."""
        return replace(self, images=tuple(image.without_content() for image in self.images))

    def without_cells(self) -> "Request":
        """The same request, of whose images the shapes alone are known."""
        if not self.images:
            return self
        return replace(self, images=tuple(image.without_cells() for image in self.images))

    def child(self, index: int) -> "Request":
        """One of several sequences as the runner sees it, with its own id and seed."""
        seed = None if self.seed is None else self.seed + index
        return replace(self, id=child_label(self.id, index), seed=seed)

    def stops_at(self, token: int, outputs: int) -> bool:
        """Whether `token`, the last of `outputs` generated ones, ends this request."""
        ends = token in self.eos_token_ids and self.ends_at_eos
        if outputs < self.min_tokens:
            return ends and self.constraint is not None
        if ends:
            return True
        return token in self.stop_token_ids


def plain_types(kind: Any) -> tuple[type, ...]:
    """The types of the values of a field: a whole number will do for a fraction."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    others = {float: (float, int), Literal: (str,), Mapping: (dict,)}
    origins = [get_origin(one) or one for one in parts]
    return tuple(found for one in origins for found in others.get(one, (one,)))


FIELD_TYPES = {
    one.name: plain_types(one.type) for one in fields(Request) if one.name not in ("id", *TOKENS)
}
FIELD_TYPES["priority"] = (int, float)  # fractions order too
TYPED_FIELDS = attrgetter(*FIELD_TYPES)
RIGHT_TYPES: set[tuple[type, ...]] = set()  # combinations that were looked at one by one


def no_keys() -> list[bytes]:
    return []  # `list[bytes]()` would take many times as long


def no_moments() -> list[Moment]:
    return []


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
    keys: list[bytes] = field(default_factory=no_keys)  # of blocks, as far as looked for
    slot: int = -1
    parked: str = ""  # what it waits for, while it cannot run at all
    finish: Finish | None = None
    preemptions: int = 0
    cached: int = 0  # prompt tokens found in the cache when first admitted
    child: int = -1  # which of several sequences of its request; -1: the only one
    swapped: bool = False  # are its blocks on the host?
    life: list[Moment] = field(default_factory=no_moments)
    id: str = field(init=False)  # of its request

    def __post_init__(self) -> None:
        self.id = self.request.id

    @property
    def label(self) -> str:
        return child_label(self.request.id, self.child)

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
        if self.swapped:
            return "SWAPPED"
        return "PREEMPTED" if self.preemptions else "WAITING"
