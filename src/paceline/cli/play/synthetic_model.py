"""A model without weights: what it says is a function of names, positions and a seed."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import log

from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request

VOCABULARY = 32_000
STOP_TOKEN = 0  # drawn by nobody; yielded where the script wants an end

HEAVIEST = 1_000  # of the weights that probabilities are made of
NEVER = sys.maxsize

STEP_S = 0.020  # what a step costs whatever it holds: reading the weights
TOKEN_S = 0.000_25  # what each token of a step adds
BLOCK_S = 0.000_1  # what each block adds that goes to the host or comes from there


def step_s(plan: Plan) -> float:
    """How long a step takes on the virtual clock."""
    return STEP_S + TOKEN_S * plan.total + BLOCK_S * (len(plan.swap_out) + len(plan.swap_in))


def draw(seed: int, stream: str, position: int) -> int:
    """A number that depends on nothing else, so that it comes out the same in any schedule."""
    name = f"{seed}/{stream}/{position}".encode()
    return int.from_bytes(blake2b(name, digest_size=6).digest(), "big")


def token(seed: int, stream: str, position: int) -> int:
    return 1 + draw(seed, stream, position) % (VOCABULARY - 1)


def weight(seed: int, stream: str, position: int) -> int:
    return 1 + draw(seed, stream, position) % HEAVIEST


@dataclass(slots=True)
class Lane:
    """What the toy device knows of one slot."""

    request: Request  # where there are several sequences, the child's
    position: int  # positions computed
    tokens: list[int]  # those that the host told: for a beam, all there are

    @property
    def output(self) -> int:
        """Which output token comes next, counted from 1."""
        return self.position - len(self.request.prompt) + 1


class ToyModel:
    """Runs plans in order, as a device would.

    A draft at a position is right or wrong by a coin thrown for that position, so the
    tokens are the same with and without drafts. What may follow a beam depends on its
    tokens alone, and not on the beam that they were in before.
    """

    def __init__(self, seed: int, acceptance: float, stop_at: Mapping[str, int]) -> None:
        self._seed = seed
        self._acceptance = acceptance
        self._stop_at = stop_at  # by row label: which output token is the stop token
        self._lanes: dict[int, Lane] = {}

    def run(self, plan: Plan) -> StepResult:
        for slot in plan.released:
            self._lanes.pop(slot, None)
        for new in plan.admitted:
            self._lanes[new.slot] = Lane(new.request, new.computed, new.tokens.tolist())
        for slot, chosen in plan.chosen:
            self._lanes[slot].tokens.append(chosen)
        rows = plan.rows
        sampled: dict[str, list[int]] = {}
        scores: dict[str, list[float]] = {}
        candidates: dict[str, list[tuple[int, float]]] = {}
        for row, slot in enumerate(rows.slot.tolist()):
            lane, drafts = self._lanes[slot], int(rows.drafts[row])
            lane.position += int(rows.count[row]) - drafts
            label = lane.request.id
            if rows.samples[row] and lane.request.beam_width:
                candidates[label] = self._candidates(lane)
                sampled[label] = [candidates[label][0][0]]
            elif rows.samples[row]:
                first = lane.position
                sampled[label] = self._sampled(lane, drafts)
                if lane.request.silent:
                    places = range(first, lane.position + 1)
                    scores[label] = [self._score(label, place) for place in places]
        return StepResult.of(plan, sampled, scores or None, candidates)

    # -- samples ------------------------------------------------------------

    def _sampled(self, lane: Lane, drafts: int) -> list[int]:
        """One token, and one more for each draft that was right."""
        new = [self._token(lane)]
        while len(new) <= drafts and self._right(lane):
            lane.position += 1
            new.append(self._token(lane))
        return new

    def _token(self, lane: Lane) -> int:
        """The token that follows the computed positions."""
        if lane.output == self._stop_at.get(lane.request.id):
            return STOP_TOKEN
        return token(self._seed, f"output {lane.request.id}", lane.position)

    def _right(self, lane: Lane) -> bool:
        coin = draw(self._seed, f"draft {lane.request.id}", lane.position)
        return coin < self._acceptance * 2**48

    def _score(self, label: str, position: int) -> float:
        """The log-probability of a sample."""
        return log(weight(self._seed, f"score {label}", position) / HEAVIEST)

    # -- beams --------------------------------------------------------------

    def _candidates(self, lane: Lane) -> list[tuple[int, float]]:
        """The likeliest continuations of a beam; the stop token only from `stop_at` on."""
        told = ",".join(map(str, lane.tokens)).encode()
        stream = f"beam {blake2b(told, digest_size=8).hexdigest()}"
        first = draw(self._seed, stream, 0)
        ids = [1 + (first + place) % (VOCABULARY - 1) for place in range(lane.request.candidates)]
        if lane.output >= self._stop_at.get(lane.request.id, NEVER):
            ids[-1] = STOP_TOKEN
        weights = {one: weight(self._seed, stream, 1 + place) for place, one in enumerate(ids)}
        ranked = sorted(ids, key=lambda one: (-weights[one], one))
        total = sum(weights.values())
        return [(one, log(weights[one] / total)) for one in ranked]
