"""Suffix decoding: draft from earlier occurrences in the sequence and in past outputs.

The method is SuffixDecoding (Oliaro et al., 2024). A draft is a path in the tree of all suffixes
seen, below the node of the latest tokens; each token on it is the one that followed most often. The
tree is not built: paths are computed from a short list of earlier occurrences.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from paceline.core.arrays import I32, I64
from paceline.core.plan import Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.proposer import Drafter, DraftingFor, DraftInput, Drafts, SlotColumns
from paceline.runner.tensors import from_numpy, to_ints

LEAST = 2  # latest tokens that must have occurred before
OCCURRENCES = 32  # of the latest tokens that are read, latest first
NODES = 4  # of the tree to compare, deepest first
CAPACITY = 1 << 20  # tokens of past outputs
GRAMS = (6, LEAST)  # lengths of the n-grams that index past outputs, longest first
UNREAD = 64  # most outputs kept on the device until drafts are wanted


class Text(Protocol):
    """Tokens by position; -1 where there is none."""

    def at(self, positions: I64) -> I64: ...


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens to draft. The score is the expected number of accepted ones."""

    tokens: list[int]
    score: float


@dataclass(frozen=True, slots=True)
class Reach:
    """Depth of the tree and least odds of a path."""

    depth: int
    factor: float
    least_odds: float

    def below(self, least: int, most: int) -> int:
        """Tokens that may follow a match: the match and the tokens after it share the depth of the
        tree."""
        length = min(max(int(self.depth / (1.0 + self.factor)), least), most)
        return max(min(int(self.factor * length), self.depth - length), 0)


NOTHING = Guess([], 0.0)


class Suffix(Drafter):
    """Drafts the path with the best score, from the sequence or from past outputs.

    Reading tokens on the host waits for the step in flight. So the outputs of finished requests
    are copied on the device, and read only when drafts are wanted; while speculation pauses, only
    the latest ones are kept, and they cost no host time.
    """

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        depth, factor = (
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_spec_factor,
        )
        self._reach = Reach(depth, factor, config.suffix_decoding_min_token_prob)
        self._past = PastOutputs(config.suffix_decoding_max_cached_requests)
        self._columns: SlotColumns | None = None
        self._prompts: dict[int, tuple[str, int]] = {}  # by slot: request id, tokens of its prompt
        # Tokens, position of the last one, tokens of the prompt.
        self._unread: deque[tuple[Tensor, Tensor, int]] = deque(maxlen=UNREAD)

    def attach(self, runner: DraftingFor) -> None:
        self._columns = runner.columns
        self._prompts.clear()
        self._unread.clear()

    def follow(self, plan: Plan) -> None:
        if plan.released:
            self._keep(plan)
        for new in plan.admitted:
            self._prompts[new.slot] = new.request.id, len(new.request.prompt)

    def _keep(self, plan: Plan) -> None:
        """Copy the outputs of released slots, except of preempted requests."""
        assert self._columns is not None
        for slot in plan.released:
            request, prompt = self._prompts.pop(slot, ("", 0))
            if request and request not in plan.preempted and self._past.most_outputs:
                columns = self._columns.tokens[slot].clone(), self._columns.position[slot].clone()
                self._unread.append((*columns, prompt))

    def _read(self) -> None:
        for tokens, position, prompt in self._unread:
            self._past.add(to_ints(tokens[prompt : int(position) + 1]))
        self._unread.clear()

    def draft(self, rows: DraftInput) -> Drafts:
        self._read()
        tokens, known = rows.tokens.cpu().numpy(), to_ints(rows.known)
        found = np.full((len(known), rows.most), -1, np.int64)
        for row, (length, number) in enumerate(zip(known, to_ints(rows.number), strict=True)):
            drafts = self._guess(tokens[row, :length])[:number] if number else []
            found[row, : len(drafts)] = drafts
        return Drafts(from_numpy(found).to(rows.tokens.device))

    def _guess(self, tokens: I32) -> list[int]:
        if len(tokens) < LEAST:
            return []
        latest = tokens[: -self._reach.depth : -1].astype(np.int64)  # latest first
        text = OwnTokens(tokens)
        here = best(text, text.occurrences(), latest, self._reach)
        past = best(self._past, self._past.occurrences(latest), latest, self._reach)
        return (here if here.score >= past.score else past).tokens


def best(text: Text, ends: I64, latest: I64, reach: Reach) -> Guess:
    """The best guess from the tokens after `ends`, where the latest tokens end in a text."""
    if not len(ends):
        return NOTHING
    before = text.at(ends[:, None] - np.arange(len(latest)))  # [occurrences, latest]
    length = np.logical_and.accumulate(before == latest, axis=1).sum(1)
    deepest = np.unique(length[length >= LEAST])[::-1].tolist()[:NODES]
    after = text.at(ends[:, None] + 1 + np.arange(reach.depth - 1))  # [occurrences, tokens]
    found, limits = NOTHING, [*deepest[1:], LEAST - 1]
    for most, least in zip(deepest, limits, strict=True):
        followed = after[length >= most].tolist()
        guess = path(followed, reach.below(least + 1, most), reach.least_odds)
        found = max(found, guess, key=lambda each: each.score)
    return found


def path(followed: list[list[int]], most: int, least_odds: float) -> Guess:
    """The path of the tokens that most often followed the occurrences. Its odds are the share of
    occurrences that continue this way."""
    tokens: list[int] = []
    odds, score = 1.0, 0.0
    for depth in range(most):
        times = Counter([each[depth] for each in followed])
        token = max(times, key=times.__getitem__)
        odds *= times[token] / len(followed)
        if token < 0 or odds < least_odds:
            break
        tokens.append(token)
        score += odds
        followed = [each for each in followed if each[depth] == token]
    return Guess(tokens, score)


class OwnTokens:
    """The tokens of one sequence."""

    def __init__(self, tokens: I32) -> None:
        self._tokens = tokens

    def at(self, positions: I64) -> I64:
        inside = (positions >= 0) & (positions < len(self._tokens))
        return np.where(inside, self._tokens[np.where(inside, positions, 0)], -1)

    def occurrences(self) -> I64:
        """Positions where the last two tokens occurred before, latest first."""
        tokens = self._tokens
        found = np.flatnonzero((tokens[1:-1] == tokens[-1]) & (tokens[:-2] == tokens[-2])) + 1
        return found[: -OCCURRENCES - 1 : -1]


class PastOutputs:
    """The latest outputs of finished requests, in fixed memory.

        text        | a b c d - | e f - | a b x …      a ring buffer; -1 ends each output
        before[n]   | . . . . . | . . . | . 1 .        previous end of the same n tokens
        heads[n]                                       latest end of n tokens, by hash

    Positions count from the first token ever added. Those before `oldest` were overwritten, or
    belong to dropped outputs.
    """

    def __init__(self, most_outputs: int) -> None:
        self.most_outputs = most_outputs
        self._begins: deque[int] = deque()
        self._end = 0
        size = CAPACITY if most_outputs else 1
        self._text = np.full(size, -1, np.int32)
        self._before = {gram: array("q", bytes(8 * size)) for gram in GRAMS}
        self._heads = {gram: array("q", [-1]) * size for gram in GRAMS}

    @property
    def _oldest(self) -> int:
        return max(self._end - len(self._text), self._begins[0] if self._begins else 0)

    def add(self, tokens: list[int]) -> None:
        """Add an output, and drop the oldest ones as needed."""
        tokens = tokens[1 - len(self._text) :]
        if len(tokens) <= LEAST:
            return
        self._begins.append(self._end)
        if len(self._begins) > self.most_outputs:
            self._begins.popleft()
        size = len(self._text)
        indices = (self._end + np.arange(len(tokens) + 1)) % size
        self._text[indices] = [*tokens, -1]
        for gram in GRAMS:
            before, heads = self._before[gram], self._heads[gram]
            for end in range(gram, len(tokens) + 1):
                at, head = self._end + end - 1, self._hash(tokens[end - gram : end])
                before[at % size], heads[head] = heads[head], at
        self._end += len(tokens) + 1

    def at(self, positions: I64) -> I64:
        inside = (positions >= self._oldest) & (positions < self._end)
        return np.where(inside, self._text[positions % len(self._text)], -1)

    def occurrences(self, latest: I64) -> I64:
        """Positions where the latest tokens occurred, latest first, by the longest n-gram found."""
        tokens: list[int] = latest[::-1].tolist()
        for gram in GRAMS:
            if len(tokens) >= gram:
                found = np.array(list(self._chain(gram, tokens[-gram:])), np.int64)
                there = self.at(found[:, None] - np.arange(gram)) == latest[:gram]
                if (found := found[there.all(1)]).size:
                    return found
        return np.empty(0, np.int64)

    def _chain(self, gram: int, tokens: list[int]) -> Iterator[int]:
        """Ends of n-grams with the same hash, latest first."""
        before, oldest = self._before[gram], self._oldest
        at = self._heads[gram][self._hash(tokens)]
        for _ in range(OCCURRENCES):
            if at < oldest:
                return
            yield at
            at = before[at % len(self._text)]

    def _hash(self, tokens: list[int]) -> int:
        return hash(tuple(tokens)) % len(self._text)
