"""One request of a load: when it comes, what its prompt is made of, how much it wants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isinf, log
from typing import Literal

import numpy as np

from paceline.core.arrays import F64
from paceline.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; equal segments are equal tokens."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Call:
    """Prompts that begin with the same segments share a prefix."""

    at_s: float  # since the load began
    segments: tuple[Segment, ...]
    output_len: int  # tokens
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None  # from arrival to the first token

    @property
    def input_len(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    def cut(self, most_input: int, most_output: int) -> "Call":
        """No longer than this, in tokens; what is cut off is the end of the prompt."""
        room, kept = most_input, list[Segment]()
        for segment in self.segments:
            if room <= 0:
                break
            kept.append(Segment(segment.key, min(segment.tokens, room)))
            room -= segment.tokens
        return replace(self, segments=tuple(kept), output_len=min(self.output_len, most_output))


def arrival_times(
    count: int, rate: float, burstiness: float, random: np.random.Generator
) -> F64:  # [count]
    """Seconds since the first, at `rate` requests a second; an infinite rate means at once.

    The gaps are drawn from a gamma distribution: with a burstiness of 1 arrivals are Poisson,
    below 1 they come in bursts, above 1 they are more even.
    """
    if isinf(rate) or not count:
        return np.zeros(count)
    gaps = random.gamma(burstiness, 1.0 / (rate * burstiness), count)
    return np.cumsum(gaps) - gaps[0]


SPECIAL_SHARE = 8  # the first eighth of a vocabulary has special tokens and single bytes
# Short and common, so that most vocabularies have one token for each.
COMMON = """
the of and to in is that it was for on are as with they be at one
have this from by hot but some what there we can out other were all your when up
use how said an each she which do time if will way about many then them would write
like so these her long make thing see
"""
WORDS = COMMON.split()
LONGEST = 2**31 - 1  # tokens of a prompt or an output


@dataclass(frozen=True, slots=True)
class Span:
    """A length in tokens, drawn evenly from `low` to `high`."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> "Span":
        """Of "128" or "64-256"."""
        low, dash, high = text.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"{text!r} is no length like 128 and no range like 64-256")
        span = Span(int(low), int(high) if dash else int(low))
        if not 0 < span.low <= span.high <= LONGEST:
            raise ValueError(f"{text!r} is not a range of positive lengths up to {LONGEST}")
        return span

    def draw(self, random: np.random.Generator) -> int:
        return int(random.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True, slots=True)
class Shape:
    """Prompts of `input_len` tokens, the first `prefix_len` of them from one of a few prefixes."""

    input_len: Span
    output_len: Span
    prefix_len: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        if self.prefix_len >= self.input_len.low and self.prefix_len:
            raise ConfigError(
                f"a shared prefix of {self.prefix_len} tokens leaves nothing of a prompt of "
                f"{self.input_len.low}"
            )

    def calls(self, times: Sequence[float], random: np.random.Generator) -> list[Call]:
        """One for each time."""
        found: list[Call] = []
        for number, at_s in enumerate(times):
            length = self.input_len.draw(random)
            own = Segment(f"prompt {number}", length - self.prefix_len)
            shared = Segment(f"prefix {random.integers(self.prefixes)}", self.prefix_len)
            segments = (shared, own) if self.prefix_len else (own,)
            found.append(Call(float(at_s), segments, self.output_len.draw(random)))
        return found


def token_ids(call: Call, vocab_size: int, seed: int) -> list[int]:
    """Exactly `input_len` ids, none of them from the beginning of the vocabulary."""
    low = vocab_size // SPECIAL_SHARE
    ids: list[int] = []
    for segment in call.segments:
        ids += drawing(segment, seed).integers(low, vocab_size, segment.tokens).tolist()
    return ids


def words(call: Call, seed: int) -> str:
    """`input_len` words, which are about as many tokens."""
    places: list[int] = []
    for segment in call.segments:
        places += drawing(segment, seed).integers(0, len(WORDS), segment.tokens).tolist()
    return " ".join(WORDS[place] for place in places)


def drawing(segment: Segment, seed: int) -> np.random.Generator:
    """Depends on the segment's key and the seed alone; a shorter one is a prefix of a longer."""
    digest = blake2b(f"{seed}/{segment.key}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


FORMS = "128, 64-256, lognormal:MEDIAN:SIGMA or exponential:MEAN"


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Draws lengths: evenly from a span, or from a distribution with a long tail."""

    kind: Literal["even", "lognormal", "exponential"]
    first: float  # the lower end, the median or the mean
    second: float = 0.0  # the upper end or sigma

    @staticmethod
    def parse(text: str) -> "LengthDistribution":
        """Of "128", "64-256", "lognormal:900:0.8" or "exponential:200"."""
        kind, *numbers = text.split(":")
        try:
            values = [float(number) for number in numbers]
            if kind == "lognormal":
                median, sigma = values
                found = LengthDistribution("lognormal", median, sigma)
            elif kind == "exponential":
                (mean,) = values
                found = LengthDistribution("exponential", mean)
            else:
                span = Span.parse(text)
                found = LengthDistribution("even", span.low, span.high)
        except ValueError:
            raise ValueError(f"{text!r} is no length; write {FORMS}") from None
        if not 0 < found.first <= LONGEST or not 0 <= found.second <= LONGEST:
            raise ValueError(f"{text!r} has a number that is not positive; write {FORMS}")
        return found

    def draw(self, random: np.random.Generator) -> int:
        """At least 1."""
        if self.kind == "even":
            return int(random.integers(int(self.first), int(self.second), endpoint=True))
        if self.kind == "lognormal":
            value = random.lognormal(log(self.first), self.second)
        else:
            value = random.exponential(self.first)
        return min(max(round(value), 1), LONGEST)
