"""A runner with no model that notices every mistake in the KV cache.

Each KV cell holds a digest of the whole prefix up to its position, so two cells are
equal only if everything before them is. A row reads every earlier position through the
block table that the plans gave it, as attention would, and each read is checked: a wrong
block, an early reuse, a prefix hit on something never computed or on another tenant's
content fails at the cell where it happens.
"""

from dataclasses import dataclass, field
from random import Random

import numpy as np

from paceline.core.plan import Admitted, Plan, StepResult
from paceline.core.request import Request

MASK = (1 << 61) - 1
GARBAGE = -2  # what a rejected draft leaves behind


def mix(digest: int, token: int) -> int:
    return (digest * 1_000_003 + token + 1) & MASK


def start_digest(request: Request) -> int:
    """Where the digests of a sequence begin: another salt or adapter is another content."""
    digest = 7
    for part in (request.adapter, request.cache_salt):
        for byte in part.encode() + b"\x00":
            digest = mix(digest, byte)
    for item in request.items:
        for byte in item.identity.encode():
            digest = mix(digest, byte + item.offset)
    return digest


def next_token(request: Request, digest: int, vocab: int) -> int:
    """The greedy choice, or a sample: a function of content, seed and position alone."""
    return (mix(digest, request.seed or 0) >> 7) % vocab


def reference(request: Request, vocab: int, max_model_len: int) -> tuple[list[int], str]:
    """The tokens and the finish reason that any correct schedule must produce."""
    digest = start_digest(request)
    for token in request.prompt.tolist():
        digest = mix(digest, token)
    room = max_model_len - len(request.prompt)
    most = room if request.max_tokens is None else min(room, request.max_tokens)
    outputs: list[int] = []
    while len(outputs) < most:
        token = next_token(request, digest, vocab)
        outputs.append(token)
        ends = set(request.stop_token_ids) | set(
            () if request.ignore_eos else request.eos_token_ids
        )
        if token in ends and len(outputs) >= request.min_tokens:
            return outputs, "stop"
        digest = mix(digest, token)
    return outputs, "length"


@dataclass(slots=True)
class Lane:
    """What the device knows of one slot."""

    request: Request
    tokens: list[int]
    table: list[int]  # blocks by index; -1 where unmapped
    position: int  # positions whose KV is there
    sampled: bool = False  # since it took the slot; a drafter has nothing to go by before
    digests: list[int] = field(default_factory=list[int])  # expected, by position


class OracleRunner:
    """Runs plans in order, as one device stream would.

    `accept` is the chance that a draft turns out right. Rejected drafts leave garbage in
    their cells, as they do on a device.
    """

    def __init__(
        self, blocks: int, block_size: int, vocab: int, accept: float = 0.7, seed: int = 0
    ) -> None:
        self.block_size, self.vocab, self.accept = block_size, vocab, accept
        self.cells = [[-1] * block_size for _ in range(blocks)]
        self.lanes: dict[int, Lane] = {}
        self.computed = 0  # positions, over all steps
        self._random = Random(seed)

    def run(self, plan: Plan) -> StepResult:
        self.lose(plan)
        return self._result(plan)

    def lose(self, plan: Plan) -> None:
        """Take note of a plan without computing it, as a device that fails in it does."""
        for slot in plan.released:
            self.lanes.pop(slot, None)
        for new in plan.admitted:
            self._admit(new)
        grown = plan.grown
        for slot, index, block in zip(
            grown.slot.tolist(), grown.index.tolist(), grown.block.tolist(), strict=True
        ):
            self._map(slot, index, block)

    def _admit(self, new: Admitted) -> None:
        assert new.slot not in self.lanes, f"slot {new.slot} was not released"
        tokens = new.tokens.tolist()
        lane = Lane(new.request, tokens, list(new.blocks), new.computed)
        digest = start_digest(new.request)
        for token in tokens[: new.computed]:
            digest = mix(digest, token)
            lane.digests.append(digest)
        self.lanes[new.slot] = lane

    def _map(self, slot: int, index: int, block: int) -> None:
        table = self.lanes[slot].table
        table.extend([-1] * (index + 1 - len(table)))
        assert table[index] == -1, f"slot {slot} maps block {index} twice"
        table[index] = block

    def _result(self, plan: Plan) -> StepResult:
        rows = plan.rows
        width = 1 + (int(rows.drafts.max()) if len(rows) else 0)
        ids = np.full((len(rows), width), -1, np.int32)
        count = np.zeros(len(rows), np.int32)
        for row, slot in enumerate(rows.slot.tolist()):
            lane = self.lanes[slot]
            assert lane.request.id == rows.request_id[row], f"slot {slot} has another request"
            assert int(plan.start[row]) >= lane.position, f"{lane.request.id!r} starts too early"
            new = self._row(
                lane, int(rows.count[row]), int(rows.drafts[row]), bool(rows.samples[row])
            )
            ids[row, : len(new)] = new
            count[row] = len(new)
        return StepResult(ids, count)

    def _row(self, lane: Lane, count: int, drafts: int, samples: bool) -> list[int]:
        assert count > drafts, f"{lane.request.id!r} drafts without computing anything"
        assert lane.sampled or not drafts, f"{lane.request.id!r} drafts before its first sample"
        for position in range(lane.position):
            self._read(lane, position)
        last = lane.position + count  # the row writes up to here, whatever is accepted
        for _ in range(count - drafts):
            self._compute(lane)
        assert samples == (lane.position == len(lane.tokens)), f"{lane.request.id!r} samples early"
        if not samples:
            return []
        new: list[int] = []
        for _ in range(drafts):
            self._sample(lane, new)
            if self._random.random() >= self.accept:
                for position in range(lane.position, last):
                    self._write(lane, position, GARBAGE)
                return new
            self._compute(lane)
        self._sample(lane, new)
        return new

    def _sample(self, lane: Lane, new: list[int]) -> None:
        token = next_token(lane.request, lane.digests[-1], self.vocab)
        lane.tokens.append(token)
        lane.sampled = True
        new.append(token)

    def _compute(self, lane: Lane) -> None:
        """One position further: its KV is written, and everything before it was read."""
        before = lane.digests[-1] if lane.digests else start_digest(lane.request)
        digest = mix(before, lane.tokens[lane.position])
        self._write(lane, lane.position, digest)
        lane.digests.append(digest)
        lane.position += 1
        self.computed += 1

    def _read(self, lane: Lane, position: int) -> None:
        block = self._block(lane, position)
        seen = self.cells[block][position % self.block_size]
        assert seen == lane.digests[position], (
            f"{lane.request.id!r} position {position}, block {block}: stale or foreign KV"
        )

    def _write(self, lane: Lane, position: int, digest: int) -> None:
        self.cells[self._block(lane, position)][position % self.block_size] = digest

    def _block(self, lane: Lane, position: int) -> int:
        index = position // self.block_size
        block = lane.table[index] if index < len(lane.table) else -1
        assert block >= 0, f"{lane.request.id!r} has no block for position {position}"
        return block
