"""A language model without weights, and what any correct schedule must make of it.

The next token is a function of everything before it, so an output can be computed here in
the plainest way and compared with what came out of a schedule, token for token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.core.plan import NO_BLOCK, Admitted, Choice
from paceline.core.request import Finish, Request

MASK = (1 << 61) - 1
NO_SCORE = -1e9  # of beams that repeat another one
Mask = Callable[[list[int]], list[int]]  # from outputs to the tokens that may follow them


def mix(digest: int, token: int) -> int:
    return (digest * 1_000_003 + token + 1) & MASK


def start_digest(request: Request) -> int:
    """Where the digests of a sequence begin: another salt or adapter is another content."""
    digest = 7
    for part in (request.adapter, request.cache_salt):
        for byte in part.encode() + b"\x00":
            digest = mix(digest, byte)
    return digest


def extended(request: Request, digest: int, position: int, token: int) -> int:
    """The digest one position further. An image counts from its offset."""
    for image in request.images:
        if image.offset <= position < image.offset + image.length:
            for byte in image.identity.encode():
                digest = mix(digest, byte + position - image.offset)
    return mix(digest, token)


def next_token(
    request: Request, digest: int, vocab: int, allowed: Sequence[int] | None = None
) -> int:
    """The greedy choice, or a sample: a function of content, seed, position and mask alone."""
    number = mix(mix(digest, request.seed or 0), 0) >> 7
    return number % vocab if allowed is None else allowed[number % len(allowed)]


def logprobs(digest: int, vocab: int) -> list[float]:
    """The log-probability of every token after what `digest` stands for."""
    weights = [1 + (mix(digest, token * digest) >> 9) % 1000 for token in range(vocab)]
    total = sum(weights)
    values: list[float] = np.log(np.array(weights) / total).astype(np.float32).tolist()
    return values


def likeliest(
    digest: int, vocab: int, count: int, allowed: Sequence[int] | None = None
) -> list[tuple[int, float]]:
    """The best tokens, of those that are allowed, and their log-probabilities, best first."""
    values = logprobs(digest, vocab)
    tokens = range(vocab) if allowed is None else allowed
    ranked = sorted(
        ((token, values[token]) for token in tokens), key=lambda pair: (-pair[1], pair[0])
    )
    return ranked[:count]


def digest_of(request: Request, outputs: list[int]) -> int:
    """What a prompt and some outputs come to."""
    digest = start_digest(request)
    for position, token in enumerate([*request.prompt.tolist(), *outputs]):
        digest = extended(request, digest, position, token)
    return digest


def reference(
    request: Request, vocab: int, max_model_len: int, mask: Mask | None = None
) -> tuple[list[int], str]:
    """The tokens and the finish reason that any correct schedule must produce. A request with a
    constraint needs the `mask` of each token."""
    digest = digest_of(request, [])
    room = max_model_len - len(request.prompt)
    most = room if request.max_tokens is None else min(room, request.max_tokens)
    outputs: list[int] = []
    while len(outputs) < most:
        token = next_token(request, digest, vocab, mask(outputs) if mask else None)
        outputs.append(token)
        if mask and token in request.eos_token_ids:
            return outputs, "stop"
        ends = set(request.stop_token_ids) | set(
            () if request.ignore_eos else request.eos_token_ids
        )
        if token in ends and len(outputs) >= request.min_tokens:
            return outputs, "stop"
        digest = extended(request, digest, len(request.prompt) + len(outputs) - 1, token)
    return outputs, "length"


def best_of(
    request: Request, vocab: int, max_model_len: int, mask: Mask | None = None
) -> list[list[int]]:
    """The outputs that a request returns which samples several and wants the likeliest."""
    scored: list[tuple[float, list[int]]] = []
    for index in range(request.width):
        seed = None if request.seed is None else request.seed + index
        tokens, _ = reference(replace(request, seed=seed), vocab, max_model_len, mask)
        digests = [digest_of(request, tokens[:count]) for count in range(len(tokens))]
        gained = zip(digests, tokens, strict=True)
        total = sum(logprobs(digest, vocab)[token] for digest, token in gained)
        scored.append((total / len(tokens), tokens))
    scored.sort(key=lambda pair: -pair[0])
    return [tokens for _, tokens in scored[: request.n]]


def beam_search(
    request: Request, vocab: int, max_model_len: int, mask: Mask | None = None
) -> list[Choice]:
    """What a beam search returns: every continuation of every beam is looked at."""
    width, room = request.beam_width, max_model_len - len(request.prompt)
    most = room if request.max_tokens is None else min(room, request.max_tokens)
    nothing: list[int] = []
    beams = [(0.0 if beam == 0 else NO_SCORE, nothing) for beam in range(width)]
    ends: list[Choice] = []
    for length in range(1, most + 1):
        reached = [
            (score + value, [*tokens, token])
            for score, tokens in beams
            for token, value in likeliest(
                digest_of(request, tokens), vocab, vocab, mask(tokens) if mask else None
            )
        ]
        reached.sort(key=lambda pair: -pair[0])
        reached = reached[: request.candidates]
        going: list[tuple[float, list[int]]] = []
        for rank, (score, tokens) in enumerate(reached):
            stops = request.stops_at(tokens[-1], length)
            if not stops and length < most:
                going.append((score, tokens))
            elif rank < width:
                finish = Finish.STOP if stops else Finish.LENGTH
                weighed = score / length**request.length_penalty
                stop_token = tokens[-1] if stops else None
                ends.append(Choice(tuple(tokens), finish, weighed, stop_token))
        ends = sorted(ends, key=lambda end: -end.score)[:width]
        beams = going[:width]
        if not beams:
            break
        beams += [(NO_SCORE, beams[0][1])] * (width - len(beams))
        longest = (
            most if request.early_stopping == "never" and request.length_penalty > 0 else length
        )
        attainable = beams[0][0] / longest**request.length_penalty
        full = len(ends) == width
        if full and (request.early_stopping is True or attainable <= ends[-1].score):
            break
    return ends[: request.n]


# Tokens that may follow some that were sampled in the same step; None: all.
Allowed = Callable[[list[int]], list[int] | None]


def anything(_: list[int]) -> None:
    """Any token may follow."""


@dataclass(slots=True)
class Track:
    """What the device knows of one slot."""

    request: Request
    tokens: list[int]
    tables: list[list[int]]  # blocks by attention group and index; `NO_BLOCK` where unmapped
    position: int  # positions whose KV is there
    slot: int
    sampled: bool = False  # since it took the slot; a drafter has nothing to go by before
    drafted: bool = False  # then the host knows its position only from above
    digests: list[int] = field(default_factory=list[int])  # expected, by position
    allowed: Allowed = anything  # in this step
    reads: dict[int, int] = field(default_factory=dict[int, int])  # rows of the store, by position

    @staticmethod
    def of(new: Admitted) -> "Track":
        """As a sequence takes a slot."""
        tables = [list(blocks) for blocks in (new.blocks, *new.more)]
        track = Track(new.request, new.tokens.tolist(), tables, new.computed, new.slot)
        digest = start_digest(new.request)
        for position, token in enumerate(track.tokens[: new.computed]):
            digest = extended(new.request, digest, position, token)
            track.digests.append(digest)
        return track

    @property
    def table(self) -> list[int]:
        """The blocks of the first group."""
        return self.tables[0]

    def map(self, group: int, index: int, block: int) -> None:
        """Write an entry of a table that has none at this index."""
        table = self.tables[group]
        table.extend([NO_BLOCK] * (index + 1 - len(table)))
        assert table[index] == NO_BLOCK, f"{self.request.id!r} maps block {index} twice"
        table[index] = block

    def block(self, group: int, index: int) -> int:
        """The entry of a table; `NO_BLOCK` if it has none."""
        table = self.tables[group]
        return table[index] if index < len(table) else NO_BLOCK
