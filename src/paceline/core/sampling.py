"""How a token is chosen from the model's logits, as one request asks for it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, nextafter
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, cast

from paceline.core.errors import RequestError

# A function of the tokens generated so far and the logits [vocab], a tensor of the runner.
LogitsProcessor = Callable[[list[int], Any], Any]
GREEDY_BELOW = 1e-5  # a temperature this small leaves the most likely token alone
MOST_LOGPROBS = 20  # alternatives per token, unless an engine has another limit
LARGEST_ID = 2**31 - 1
EVERY = LARGEST_ID  # alternatives: as many as there are tokens
MOST_BIAS = 100.0  # either way
NO_BIAS: Mapping[int, float] = MappingProxyType({})

ABOVE_ZERO = nextafter(0.0, 1.0)
LARGEST = nextafter(inf, 0.0)
RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, 1e38, "[0, 1e38]"),  # finite as a float of 32 bits
    "top_p": (ABOVE_ZERO, 1.0, "(0, 1]"),
    "min_p": (0.0, 1.0, "[0, 1]"),
    "repetition_penalty": (0.001, 1000.0, "[0.001, 1000]"),
    "presence_penalty": (-2.0, 2.0, "[-2, 2]"),
    "frequency_penalty": (-2.0, 2.0, "[-2, 2]"),
}


def listed(names: Sequence[str], most: int = 8) -> str:
    """Some names in a sentence: the first of them, if there are many."""
    shown, more = names[:most], len(names) - most
    last = f"{more} more" if more > 0 else shown[-1]
    before = shown if more > 0 else shown[:-1]
    return f"{', '.join(before)} and {last}" if before else last


def alternatives(wanted: int) -> int:
    """The number of alternatives; -1 stands for all tokens."""
    return EVERY if wanted == -1 else wanted


def whole(name: str, value: Any, least: int, most: int, bounds: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} is {value!r}; it must be a whole number")
    number = int(value)
    if not least <= number <= most:
        raise RequestError(f"{name} is {number}; it {bounds}")
    return number


def fraction(name: str, value: Any, least: float, most: float, interval: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} is {value!r}; it must be a number")
    if value < least or not value <= most:  # not "most < value": a NaN lies nowhere
        raise RequestError(f"{name} is {value}; it must lie in {interval}")
    return float(value)


def token_id(name: str, value: Any) -> int:
    return whole(f"a token id of {name}", value, 0, LARGEST_ID, "must lie in 0..2147483647")


def token_ids(name: str, given: Any) -> tuple[int, ...]:
    """Ids in ascending order, each once."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"{name} is {given!r}; it must be a list of token ids")
    ids = list(cast("Iterable[Any]", given))
    if set(map(type, ids)) != {int}:
        ids = [token_id(name, value) for value in ids]
    found = sorted(set(ids))
    for value in (*found[:1], *found[-1:]):  # the smallest and the largest
        token_id(name, value)
    return tuple(found)


def biases(given: Any) -> Mapping[int, float]:
    """A read-only copy, in the order of the ids."""
    if not isinstance(given, Mapping):
        raise RequestError(f"logit_bias is {given!r}; it maps token ids to numbers")
    pairs = cast("Mapping[Any, Any]", given)
    token_ids("logit_bias", tuple(pairs))
    checked = {int(key): bias(key, value) for key, value in pairs.items()}
    return MappingProxyType(dict(sorted(checked.items())))


def bias(key: Any, value: Any) -> float:
    if type(value) is float and -MOST_BIAS <= value <= MOST_BIAS:
        return value
    named = f"logit_bias of token {key}"
    return fraction(named, value, -MOST_BIAS, MOST_BIAS, "[-100, 100]")


def functions(given: Iterable[Any]) -> tuple[LogitsProcessor, ...]:
    found = tuple(given)
    for one in found:
        if not callable(one):
            raise RequestError(f"logits_processors has {one!r:.80}, which is no function")
    return found


@dataclass(frozen=True, slots=True)
class Sampling:
    """An immutable choice of distribution. What cannot be sampled from is refused when made.

    temperature          divides the logits; 0: always the most likely token
    top_k                only the k most likely tokens; 0 or -1: all
    top_p                only the most likely tokens that make up this probability
    min_p                only tokens at least this likely, as a part of the likeliest
    repetition_penalty   divides the logits of tokens in prompt or output; below 1 it favours them
    presence_penalty     is taken from the logits of tokens in the output
    frequency_penalty    is taken from them as often as they occur in the output
    logit_bias           is added to the logits of single tokens
    allowed_token_ids    only these; None: all
    bad_token_ids        never these
    logprobs             alternatives reported with each token's log-probability; None: neither
    prompt_logprobs      the same for each token of the prompt
    logprob_token_ids    these are the alternatives, not the likeliest tokens; empty: the likeliest

    logits_processors    functions that change the logits last, in the process of the runner

    Log-probabilities are those of the model, before anything above is applied.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: NO_BIAS, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        fix = object.__setattr__
        for name, (least, most, interval) in RANGES.items():
            fix(self, name, fraction(name, getattr(self, name), least, most, interval))
        if self.temperature < GREEDY_BELOW:
            fix(self, "temperature", 0.0)
        bounds = "must be 0 or -1, for all tokens, or at least 1"
        fix(self, "top_k", max(whole("top_k", self.top_k, -1, LARGEST_ID, bounds), 0))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                bounds = "cannot be negative"
                fix(self, name, whole(name, getattr(self, name), 0, LARGEST_ID, bounds))
        if self.logit_bias is not NO_BIAS:
            fix(self, "logit_bias", biases(self.logit_bias))
        for name in ("bad_token_ids", "logprob_token_ids"):
            fix(self, name, token_ids(name, getattr(self, name)))
        if self.logprob_token_ids:
            fix(self, "logprobs", len(self.logprob_token_ids))
        fix(self, "logits_processors", functions(self.logits_processors))
        if self.allowed_token_ids is not None:
            allowed = token_ids("allowed_token_ids", self.allowed_token_ids)
            if not set(allowed) - set(self.bad_token_ids):
                raise RequestError("allowed_token_ids leaves no token to choose from")
            fix(self, "allowed_token_ids", allowed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Does the choice depend on the tokens before it, beyond what the model makes of them?"""
        penalties = self.presence_penalty, self.frequency_penalty
        changed = self.repetition_penalty != 1.0 or penalties != (0.0, 0.0)
        return changed or bool(self.logits_processors)

    @property
    def plain(self) -> bool:
        """Is the largest of the model's logits all that is asked for?"""
        edited = self.penalised or self.logit_bias or self.bad_token_ids
        restricted = edited or self.allowed_token_ids is not None
        return self.greedy and not restricted and self.logprobs is None

    def check_vocab(self, vocab: int) -> None:
        """Refuse token ids that a model of `vocab` words does not have."""
        named = {
            "logit_bias": tuple(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_token_ids": self.bad_token_ids,
            "logprob_token_ids": self.logprob_token_ids,
        }
        for name, ids in named.items():
            if ids and ids[-1] >= vocab:
                beyond = [str(one) for one in ids if one >= vocab]
                are = "which is" if len(beyond) == 1 else "which are"
                raise RequestError(
                    f"{name} has {listed(beyond)}, {are} out of vocabulary; the vocabulary has "
                    f"{vocab} tokens"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapping proxy cannot be sent to another process, a dict can, and a function cannot."""
        if self.logits_processors:
            raise RequestError(
                "logits_processors cannot be sent to another process; remove them, or set "
                "tensor_parallel_size to 1"
            )
        values: list[Any] = [getattr(self, setting.name) for setting in fields(self)]
        plain = [dict(self.logit_bias) if v is self.logit_bias else v for v in values]
        return Sampling, tuple(plain)


GREEDY = Sampling(temperature=0.0)
MOST_TARGET_MS = 1e9


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """How soon a request is to have its tokens, in milliseconds; None: as its tenant or the server
    has it."""

    ttft_ms: float | None = None  # from arrival to the first token
    itl_ms: float | None = None  # between two tokens; a hundredth of the gaps may be longer

    def __post_init__(self) -> None:
        for one in fields(self):
            target: Any = getattr(self, one.name)
            if target is None:
                continue
            if isinstance(target, bool) or not isinstance(target, int | float):
                raise RequestError(f"slo: {one.name} is {target!r}; it must be a number")
            if not 0 < target <= MOST_TARGET_MS:
                raise RequestError(
                    f"slo: {one.name} is {target}; it must be positive and at most "
                    f"{MOST_TARGET_MS:.0e} milliseconds"
                )

    @classmethod
    def of(cls, given: Any) -> "ServiceLevel | None":
        """From a mapping, an object of this kind, or None."""
        if given is None or isinstance(given, ServiceLevel):
            return given
        names = [one.name for one in fields(cls)]
        if not isinstance(given, Mapping) or not given.keys() <= set(names):
            raise RequestError(
                f"slo is {given!r}; it must be an object with {' or '.join(names)}, such as "
                '{"ttft_ms": 500, "itl_ms": 40}'
            )
        return cls(**cast("Mapping[str, Any]", given))

    def filled(self, other: "ServiceLevel | None") -> "ServiceLevel":
        """The same, with the targets of another one where it has none."""
        if other is None:
            return self
        ttft = other.ttft_ms if self.ttft_ms is None else self.ttft_ms
        return ServiceLevel(ttft, other.itl_ms if self.itl_ms is None else self.itl_ms)


NO_TARGETS = ServiceLevel()
