"""A model without weights: each token is a function of seed, request and position."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from paceline.core.plan import Plan, StepResult

VOCABULARY = 32_000
STOP_TOKEN = 0  # drawn by nobody; yielded where the script wants an end

STEP_S = 0.020  # what a step costs whatever it holds: reading the weights
TOKEN_S = 0.000_25  # what each token of a step adds


def step_s(tokens: int) -> float:
    """How long a step takes on the virtual clock."""
    return STEP_S + TOKEN_S * tokens


def draw(seed: int, stream: str, position: int) -> int:
    """A number that depends on nothing else, so that it comes out the same in any schedule."""
    name = f"{seed}/{stream}/{position}".encode()
    return int.from_bytes(blake2b(name, digest_size=6).digest(), "big")


def token(seed: int, stream: str, position: int) -> int:
    return 1 + draw(seed, stream, position) % (VOCABULARY - 1)


@dataclass(slots=True)
class Lane:
    """What the toy device knows of one slot."""

    request_id: str
    prompt: int
    position: int  # positions computed


class ToyModel:
    """Runs plans in order, as a device would.

    A draft at a position is right or wrong by a coin thrown for that position, so the
    tokens are the same with and without drafts.
    """

    def __init__(self, seed: int, acceptance: float, stop_at: Mapping[str, int]) -> None:
        self._seed = seed
        self._acceptance = acceptance
        self._stop_at = stop_at  # by request id: which output token is the stop token
        self._lanes: dict[int, Lane] = {}

    def run(self, plan: Plan) -> StepResult:
        for slot in plan.released:
            self._lanes.pop(slot, None)
        for new in plan.admitted:
            self._lanes[new.slot] = Lane(new.request.id, len(new.request.prompt), new.computed)
        rows = plan.rows
        width = 1 + int(rows.drafts.max(initial=0))
        ids = np.full((len(rows), width), -1, np.int32)
        count = np.zeros(len(rows), np.int32)
        for row, slot in enumerate(rows.slot.tolist()):
            lane, drafts = self._lanes[slot], int(rows.drafts[row])
            lane.position += int(rows.count[row]) - drafts
            if rows.samples[row]:
                new = self._sampled(lane, drafts)
                ids[row, : len(new)] = new
                count[row] = len(new)
        return StepResult(ids, count)

    def _sampled(self, lane: Lane, drafts: int) -> list[int]:
        """One token, and one more for each draft that was right."""
        new = [self._token(lane)]
        while len(new) <= drafts and self._right(lane):
            lane.position += 1
            new.append(self._token(lane))
        return new

    def _token(self, lane: Lane) -> int:
        """The token that follows the computed positions."""
        if lane.position - lane.prompt + 1 == self._stop_at.get(lane.request_id):
            return STOP_TOKEN
        return token(self._seed, f"output {lane.request_id}", lane.position)

    def _right(self, lane: Lane) -> bool:
        coin = draw(self._seed, f"draft {lane.request_id}", lane.position)
        return coin < self._acceptance * 2**48
