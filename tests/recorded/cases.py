"""Seeded scheduling cases, and the one loop that plays a case on any scheduler."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Protocol, TypedDict

VOCABULARY = 24
EOS = 0
STOP_IDS = range(1, 6)
MAX_STEPS = 2_000

Span = tuple[int, int]  # inclusive at both ends
Tokens = tuple[int, ...]


class Settings(TypedDict):
    """Settings by paceline's names; `num_blocks` counts usable blocks."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    policy: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a case; it arrives, and may be aborted, just before the named step."""

    id: str
    prompt: Tokens
    max_tokens: int
    arrival_step: int
    abort_step: int | None
    min_tokens: int
    eos_token_id: int | None
    ignore_eos: bool
    stop_token_ids: Tokens
    priority: int

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.max_tokens


@dataclass(frozen=True, slots=True)
class Case:
    """Settings and requests; `asks` stand in the order in which they are submitted."""

    name: str
    family: str
    settings: Settings
    asks: tuple[Ask, ...]

    def sampled(self, index: int, position: int) -> int:
        return sampled_token(self.name, index, position)

    def fingerprint(self) -> str:
        """Changes whenever anything that a scheduler sees of this case changes."""
        firsts = [self.sampled(index, 0) for index in range(len(self.asks))]
        content = json.dumps([asdict(self), firsts], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def sampled_token(seed: str, index: int, position: int) -> int:
    """What the model says as output `position` of request `index`: a function of these alone."""
    digest = hashlib.blake2b(f"{seed}/{index}/{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


# Families: how cases are drawn.


@dataclass(frozen=True, slots=True)
class Draft:
    """A case being drawn: what a prompt maker may look at."""

    rng: Random
    name: str
    family: Family
    block_size: int
    arrivals: list[int]  # the step before which each request arrives, in order
    asks: list[Ask] = field(default_factory=list[Ask])
    stems: list[Tokens] = field(default_factory=list[Tokens])

    @property
    def arrival(self) -> int:
        """Of the request that is drawn next."""
        return self.arrivals[len(self.asks)]

    def between(self, span: Span) -> int:
        return self.rng.randint(*span)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def text(self, length: int) -> Tokens:
        return tuple(self.rng.randrange(VOCABULARY) for _ in range(length))


def unrelated(draft: Draft) -> Tokens:
    return draft.text(draft.between(draft.family.prompt))


def shared_stem(draft: Draft) -> Tokens:
    """One of three stems, or a part of it, then a short tail, or none: hits of every length."""
    while len(draft.stems) < 3:
        draft.stems.append(unrelated(draft))
    stem = draft.rng.choice(draft.stems)
    if draft.chance(0.3):
        stem = stem[: draft.rng.randint(1, len(stem))]
    return stem + draft.text(draft.rng.choice((0, 0, 1, 3, draft.block_size)))


def aligned(draft: Draft) -> Tokens:
    """Whole blocks only, from two stems: copies, and prompts that begin another one."""
    most = max(1, draft.family.prompt[1] // draft.block_size)
    while len(draft.stems) < 2:
        draft.stems.append(draft.text(most * draft.block_size))
    stem = draft.rng.choice(draft.stems)
    return stem[: draft.block_size * draft.rng.choice((most, most, draft.rng.randint(1, most)))]


def conversation(draft: Draft) -> Tokens:
    """The prompt and the answer of a request that has most likely ended, and a new question."""
    over = [i for i, ask in enumerate(draft.asks) if ask.arrival_step + 32 < draft.arrival]
    return _continued(draft, draft.rng.choice(over)) if over else unrelated(draft)


def overheard(draft: Draft) -> Tokens:
    """As a conversation, of a request that may still be running: its text is guessed."""
    if not draft.asks or draft.chance(0.3):
        return unrelated(draft)
    return _continued(draft, draft.rng.randrange(len(draft.asks)))


def _continued(draft: Draft, index: int) -> Tokens:
    ask = draft.asks[index]
    answer = tuple(sampled_token(draft.name, index, p) for p in range(ask.max_tokens))
    return ask.prompt + answer + draft.text(draft.rng.randint(1, 5))


@dataclass(frozen=True, slots=True)
class Family:
    """The ranges from which one family draws.

    `spare_blocks` is the room beyond what one request of `max_model_len` needs; None gives every
    request blocks of its own, so that nothing is ever preempted or evicted.
    `slack` is `max_model_len` less the longest request; negative, the model length ends requests.
    """

    name: str
    cases: int
    prompt_maker: Callable[[Draft], Tokens]
    requests: Span = (6, 12)
    prompt: Span = (1, 40)
    outputs: Span = (1, 16)
    last_arrival: Span = (0, 16)
    seats: Span = (3, 8)
    budget: Span = (48, 128)
    threshold: Span = (0, 0)
    block_sizes: tuple[int, ...] = (2, 4, 8, 16)
    spare_blocks: Span | None = None
    slack: Span = (0, 6)
    caching: tuple[bool, ...] = (True, False)
    chunked: bool = True
    policy: str = "fcfs"
    priorities: Span = (0, 0)
    eos_chance: float = 0.25
    stop_chance: float = 0.0
    min_tokens_chance: float = 0.0
    abort_chance: float = 0.0


STOPS = Family(
    "stops",
    8,
    unrelated,
    outputs=(6, 24),
    eos_chance=0.8,
    stop_chance=0.6,
    min_tokens_chance=0.5,
)
PRESSURE = Family(
    "pressure",
    0,
    shared_stem,
    prompt=(2, 24),
    outputs=(8, 28),
    last_arrival=(0, 30),
    block_sizes=(2, 4, 8),
    spare_blocks=(0, 6),
)
FAMILIES = (
    Family("plain", 8, unrelated),
    Family("chunked", 12, shared_stem, prompt=(1, 60), seats=(2, 6), budget=(6, 24)),
    Family("long-prefill", 12, shared_stem, prompt=(1, 60), budget=(12, 40), threshold=(2, 12)),
    Family("whole-prefill", 12, shared_stem, chunked=False),
    Family("shared", 14, shared_stem, prompt=(4, 40), budget=(8, 96), caching=(True,)),
    Family("conversation", 8, conversation, last_arrival=(90, 120), caching=(True,)),
    Family("overheard", 4, overheard, last_arrival=(24, 48), caching=(True,)),
    Family("aligned", 10, aligned, last_arrival=(0, 10), budget=(16, 96), caching=(True,)),
    Family("few-seats", 8, shared_stem, requests=(10, 18), prompt=(2, 20), seats=(1, 3)),
    Family("model-length", 10, shared_stem, prompt=(4, 24), outputs=(4, 30), slack=(-24, -1)),
    Family("priority", 14, shared_stem, policy="priority", priorities=(-2, 3), seats=(1, 4)),
    Family("aborts", 8, shared_stem, budget=(8, 40), abort_chance=0.5),
    STOPS,
    replace(PRESSURE, name="pressure-uncached", cases=16, caching=(False,)),
    replace(PRESSURE, name="pressure-cached", cases=18, caching=(True,)),
    replace(PRESSURE, name="pressure-chunked", cases=9, budget=(8, 24)),
    replace(PRESSURE, name="pressure-capped", cases=6, threshold=(2, 10)),
    replace(PRESSURE, name="pressure-whole", cases=6, chunked=False),
    replace(PRESSURE, name="pressure-aligned", cases=9, prompt_maker=aligned, caching=(True,)),
    replace(PRESSURE, name="pressure-stops", cases=6, eos_chance=0.8, stop_chance=0.5),
    replace(PRESSURE, name="pressure-aborts", cases=12, abort_chance=0.6),
)


def cases() -> list[Case]:
    return [_case(family, number) for family in FAMILIES for number in range(family.cases)]


def _case(family: Family, number: int) -> Case:
    name = f"{family.name}-{number:02d}"
    rng = Random(name)
    block_size = family.block_sizes[number % len(family.block_sizes)]
    last_arrival = rng.randint(*family.last_arrival)
    # Sorted, so that order of submission, order of arrival and order of ids are one.
    arrivals = sorted(rng.randint(0, last_arrival) for _ in range(rng.randint(*family.requests)))
    draft = Draft(rng, name, family, block_size, arrivals)
    for index in range(len(arrivals)):
        draft.asks.append(_ask(draft, f"r{index:02d}"))
    # Caching alternates more slowly than the block size, so that each meets each.
    caching = family.caching[number // len(family.block_sizes) % len(family.caching)]
    return Case(name, family.name, _settings(draft, caching), tuple(draft.asks))


def _ask(draft: Draft, request_id: str) -> Ask:
    family = draft.family
    prompt = family.prompt_maker(draft)
    max_tokens = draft.between(family.outputs)
    aborted = draft.chance(family.abort_chance)
    gated = draft.chance(family.min_tokens_chance)
    stops = draft.chance(family.stop_chance)
    return Ask(
        id=request_id,
        prompt=prompt,
        max_tokens=max_tokens,
        arrival_step=draft.arrival,
        abort_step=draft.arrival + draft.rng.randint(0, 24) if aborted else None,
        min_tokens=draft.rng.randint(1, max_tokens) if gated else 0,
        eos_token_id=None if draft.chance(0.1) else EOS,
        ignore_eos=not draft.chance(family.eos_chance),
        stop_token_ids=tuple(i for i in STOP_IDS if draft.chance(0.4)) if stops else (),
        priority=draft.between(family.priorities),
    )


def _settings(draft: Draft, caching: bool) -> Settings:
    family, asks, block_size = draft.family, draft.asks, draft.block_size
    longest_prompt = max(len(ask.prompt) for ask in asks)
    length = max(max(ask.longest for ask in asks) + draft.between(family.slack), longest_prompt + 1)
    seats = draft.between(family.seats)
    budget = max(draft.between(family.budget), seats)
    if not family.chunked:
        budget = length + draft.rng.randint(0, 12)  # a prompt must fit into one step
    blocks = _blocks(length, block_size)
    if family.spare_blocks is None:
        blocks += sum(_blocks(ask.longest, block_size) for ask in asks)
    else:
        blocks += draft.between(family.spare_blocks)
    return Settings(
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        max_model_len=length,
        num_blocks=blocks,
        block_size=block_size,
        policy=family.policy,
        enable_prefix_caching=caching,
        enable_chunked_prefill=family.chunked,
        long_prefill_token_threshold=draft.between(family.threshold),
    )


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


# Playing a case.


@dataclass(slots=True)
class Step:
    """What a scheduler decided in one step, by request id; `at` is the step's number.

    `finished` names who ended since the step before, `aborted` the state that each request aborted
    since then was in. `cached` holds the prefix hit, in tokens, of every request admitted in the
    step; `blocks` the whole block table of those, and the newly taken blocks of the others.
    """

    at: int
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    new: list[str] = field(default_factory=list[str])
    resumed: list[str] = field(default_factory=list[str])
    preempted: list[str] = field(default_factory=list[str])
    finished: list[str] = field(default_factory=list[str])
    cached: dict[str, int] = field(default_factory=dict[str, int])
    blocks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    aborted: dict[str, str] = field(default_factory=dict[str, str])
    ended: dict[str, str] = field(default_factory=dict[str, str])

    def to_plain(self) -> dict[str, Any]:
        """Without its empty fields."""
        return {key: value for key, value in asdict(self).items() if value or key == "at"}


class Engine(Protocol):
    """A scheduler, as `play` drives it."""

    def submit(self, ask: Ask, now: float) -> None: ...

    def abort(self, request_id: str, now: float) -> str:
        """Ends a request; answers with the state it was in."""
        ...

    def plan(self, step: Step, now: float) -> list[str]:
        """Fills in the decisions of `step`; answers with the ids that sample a token in it."""
        ...

    def commit(self, sampled: dict[str, int], now: float) -> dict[str, str]:
        """Takes what was sampled in the step; answers with finish reasons of what ended."""
        ...


def play(case: Case, engine: Engine) -> Iterator[Step]:
    """Every step from the first arrival to the last end; time without any request is skipped."""
    number = {ask.id: index for index, ask in enumerate(case.asks)}
    outputs: dict[str, int] = {}  # of the requests submitted and not yet ended
    coming = list(case.asks)
    at = 0
    for _ in range(MAX_STEPS):
        if not outputs and coming:
            at = max(at, coming[0].arrival_step)
        step = Step(at)
        while coming and coming[0].arrival_step == at:
            ask = coming.pop(0)
            engine.submit(ask, float(at))
            outputs[ask.id] = 0
        for ask in case.asks:
            if ask.abort_step == at and ask.id in outputs:
                step.aborted[ask.id] = engine.abort(ask.id, float(at))
                del outputs[ask.id]
        if outputs or step.aborted:
            sampling = engine.plan(step, float(at))
            sampled = {name: case.sampled(number[name], outputs[name]) for name in sampling}
            step.ended = engine.commit(sampled, at + 0.5)
            for name in sampling:
                outputs[name] += 1
            for name in step.ended:
                del outputs[name]
            yield step
        elif not coming:
            return
        at += 1
    raise RuntimeError(f"{case.name} has not ended after {MAX_STEPS} steps")
