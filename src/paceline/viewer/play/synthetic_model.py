"""A model without weights: each token is a function of a name, a position and a seed."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import log

from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request

VOCABULARY = 32_000
STOP_TOKEN = 0  # never drawn; sampled where the script ends a sequence

HEAVIEST = 1_000  # largest weight; probabilities are proportional to weights
NEVER = sys.maxsize

STEP_S = 0.020  # fixed time of a step, for reading the weights
TOKEN_S = 0.000_25  # for each token of a step
BLOCK_S = 0.000_1  # for each block copied to or from the host


def step_s(plan: Plan) -> float:
    """How long a step takes on the virtual clock."""
    return STEP_S + TOKEN_S * plan.total + BLOCK_S * (len(plan.swap_out) + len(plan.swap_in))


def draw(seed: int, stream: str, position: int) -> int:
    """A number that depends on the arguments alone, so it is the same in any schedule."""
    name = f"{seed}/{stream}/{position}".encode()
    return int.from_bytes(blake2b(name, digest_size=6).digest(), "big")


def token(seed: int, stream: str, position: int) -> int:
    return 1 + draw(seed, stream, position) % (VOCABULARY - 1)


def weight(seed: int, stream: str, position: int) -> int:
    return 1 + draw(seed, stream, position) % HEAVIEST


@dataclass(slots=True)
class ToySlot:
    """State of one slot on the toy device."""

    request: Request  # of the child, if the request has several sequences
    position: int  # positions computed
    tokens: list[int]  # received from the host; for a beam, all of its tokens

    @property
    def output(self) -> int:
        """Number of the next output token, from 1."""
        return self.position - len(self.request.prompt) + 1


class ToyModel:
    """Runs plans in order, as a device would.

    Whether a draft is right depends on its position alone, so the tokens are the same with and
    without drafts. The candidates of a beam depend on its tokens alone.
    """

    def __init__(self, seed: int, acceptance: float, stop_at: Mapping[str, int]) -> None:
        self._seed = seed
        self._acceptance = acceptance
        self._stop_at = stop_at  # by row label: which output token is the stop token
        self._slots: dict[int, ToySlot] = {}

    def run(self, plan: Plan) -> StepResult:
        for number in plan.released:
            self._slots.pop(number, None)
        for new in plan.admitted:
            self._slots[new.slot] = ToySlot(new.request, new.computed, new.tokens.tolist())
        for number, chosen in plan.chosen:
            self._slots[number].tokens.extend(chosen)
        rows = plan.rows
        sampled: dict[str, list[int]] = {}
        scores: dict[str, list[float]] = {}
        candidates: dict[str, list[tuple[int, float]]] = {}
        for row, number in enumerate(rows.slot.tolist()):
            slot, drafts = self._slots[number], int(rows.drafts[row])
            slot.position += int(rows.count[row]) - drafts
            label = slot.request.id
            if rows.samples[row] and slot.request.beam_width:
                candidates[label] = self._candidates(slot)
                sampled[label] = [candidates[label][0][0]]
            elif rows.samples[row]:
                first = slot.position
                sampled[label] = self._sampled(slot, drafts)
                if slot.request.silent:
                    positions = range(first, slot.position + 1)
                    scores[label] = [self._score(label, position) for position in positions]
        return StepResult.of(plan, sampled, scores or None, candidates)

    # -- samples ------------------------------------------------------------

    def _sampled(self, slot: ToySlot, drafts: int) -> list[int]:
        """One token, and one more for each draft that was right."""
        new = [self._token(slot)]
        while len(new) <= drafts and self._right(slot):
            slot.position += 1
            new.append(self._token(slot))
        return new

    def _token(self, slot: ToySlot) -> int:
        """The token that follows the computed positions."""
        if slot.output == self._stop_at.get(slot.request.id):
            return STOP_TOKEN
        return token(self._seed, f"output {slot.request.id}", slot.position)

    def _right(self, slot: ToySlot) -> bool:
        coin = draw(self._seed, f"draft {slot.request.id}", slot.position)
        return coin < self._acceptance * 2**48

    def _score(self, label: str, position: int) -> float:
        """The log-probability of a sample."""
        return log(weight(self._seed, f"score {label}", position) / HEAVIEST)

    # -- beams --------------------------------------------------------------

    def _candidates(self, slot: ToySlot) -> list[tuple[int, float]]:
        """The likeliest continuations of a beam; the stop token only from `stop_at` on."""
        known = ",".join(map(str, slot.tokens)).encode()
        stream = f"beam {blake2b(known, digest_size=8).hexdigest()}"
        first = draw(self._seed, stream, 0)
        ids = [1 + (first + column) % (VOCABULARY - 1) for column in range(slot.request.candidates)]
        if slot.output >= self._stop_at.get(slot.request.id, NEVER):
            ids[-1] = STOP_TOKEN
        weights = {one: weight(self._seed, stream, 1 + column) for column, one in enumerate(ids)}
        ranked = sorted(ids, key=lambda one: (-weights[one], one))
        total = sum(weights.values())
        return [(one, log(weights[one] / total)) for one in ranked]
