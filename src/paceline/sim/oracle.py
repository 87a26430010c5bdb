"""A runner with no model that notices every mistake in the KV cache.

Each KV cell holds a digest of the whole prefix up to its position, so two cells are
equal only if everything before them is. When all rows of a step have written, each reads
all its positions through the block table that the plans gave it, as attention would, and
each read is checked: a wrong
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
    return digest


def extended(request: Request, digest: int, position: int, token: int) -> int:
    """The digest one position further. A multimodal item counts from where it stands."""
    for item in request.items:
        if item.offset <= position < item.offset + item.length:
            for byte in item.identity.encode():
                digest = mix(digest, byte + position - item.offset)
    return mix(digest, token)


def next_token(request: Request, digest: int, vocab: int) -> int:
    """The greedy choice, or a sample: a function of content, seed and position alone."""
    return (mix(mix(digest, request.seed or 0), 0) >> 7) % vocab


def reference(request: Request, vocab: int, max_model_len: int) -> tuple[list[int], str]:
    """The tokens and the finish reason that any correct schedule must produce."""
    digest = start_digest(request)
    for position, token in enumerate(request.prompt.tolist()):
        digest = extended(request, digest, position, token)
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
        digest = extended(request, digest, len(request.prompt) + len(outputs) - 1, token)
    return outputs, "length"


@dataclass(slots=True)
class Track:
    """What the device knows of one slot."""

    request: Request
    tokens: list[int]
    table: list[int]  # blocks by index; -1 where unmapped
    position: int  # positions whose KV is there
    sampled: bool = False  # since it took the slot; a drafter has nothing to go by before
    drafted: bool = False  # then the host knows its position only from above
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
        self.tracks: dict[int, Track] = {}
        self.computed = 0  # positions, over all steps
        self._random = Random(seed)

    def run(self, plan: Plan) -> StepResult:
        self.lose(plan)
        return self._result(plan)

    def lose(self, plan: Plan) -> None:
        """Take note of a plan without computing it, as a device that fails in it does."""
        for slot in plan.released:
            self.tracks.pop(slot, None)
        for new in plan.admitted:
            self._admit(new)
        grown = plan.grown
        for slot, index, block in zip(
            grown.slot.tolist(), grown.index.tolist(), grown.block.tolist(), strict=True
        ):
            self._map(slot, index, block)

    def _admit(self, new: Admitted) -> None:
        assert new.slot not in self.tracks, f"slot {new.slot} was not released"
        tokens = new.tokens.tolist()
        track = Track(new.request, tokens, list(new.blocks), new.computed)
        digest = start_digest(new.request)
        for position, token in enumerate(tokens[: new.computed]):
            digest = extended(new.request, digest, position, token)
            track.digests.append(digest)
        self.tracks[new.slot] = track

    def _map(self, slot: int, index: int, block: int) -> None:
        table = self.tracks[slot].table
        table.extend([-1] * (index + 1 - len(table)))
        assert table[index] == -1, f"slot {slot} maps block {index} twice"
        table[index] = block

    def _result(self, plan: Plan) -> StepResult:
        rows = plan.rows
        width = 1 + (int(rows.drafts.max()) if len(rows) else 0)
        ids = np.full((len(rows), width), -1, np.int32)
        count = np.zeros(len(rows), np.int32)
        for row, slot in enumerate(rows.slot.tolist()):
            track = self.tracks[slot]
            assert track.request.id == rows.request_id[row], f"slot {slot} has another request"
            ahead = int(plan.start[row]) - track.position
            assert ahead == 0 or (ahead > 0 and track.drafted), (
                f"{track.request.id!r} starts at the wrong position"
            )
            new = self._row(
                track, int(rows.count[row]), int(rows.drafts[row]), bool(rows.samples[row])
            )
            ids[row, : len(new)] = new
            count[row] = len(new)
        for slot in rows.slot.tolist():  # attention reads when all rows have written
            for position in range(self.tracks[slot].position):
                self._read(self.tracks[slot], position)
        return StepResult(ids, count)

    def _row(self, track: Track, count: int, drafts: int, samples: bool) -> list[int]:
        assert count > drafts, f"{track.request.id!r} drafts without computing anything"
        assert track.sampled or not drafts, f"{track.request.id!r} drafts before its first sample"
        track.drafted |= drafts > 0
        last = track.position + count  # the row writes up to here, whatever is accepted
        for _ in range(count - drafts):
            self._compute(track)
        assert samples == (track.position == len(track.tokens)), (
            f"{track.request.id!r} samples early"
        )
        if not samples:
            return []
        new: list[int] = []
        for _ in range(drafts):
            self._sample(track, new)
            if self._random.random() >= self.accept:
                for position in range(track.position, last):
                    self._write(track, position, GARBAGE)
                return new
            self._compute(track)
        self._sample(track, new)
        return new

    def _sample(self, track: Track, new: list[int]) -> None:
        token = next_token(track.request, track.digests[-1], self.vocab)
        track.tokens.append(token)
        track.sampled = True
        new.append(token)

    def _compute(self, track: Track) -> None:
        """One position further: its KV is written, and everything before it was read."""
        before = track.digests[-1] if track.digests else start_digest(track.request)
        digest = extended(track.request, before, track.position, track.tokens[track.position])
        self._write(track, track.position, digest)
        track.digests.append(digest)
        track.position += 1
        self.computed += 1

    def _read(self, track: Track, position: int) -> None:
        block = self._block(track, position)
        seen = self.cells[block][position % self.block_size]
        assert seen == track.digests[position], (
            f"{track.request.id!r} position {position}, block {block}: stale or foreign KV"
        )

    def _write(self, track: Track, position: int, digest: int) -> None:
        self.cells[self._block(track, position)][position % self.block_size] = digest

    def _block(self, track: Track, position: int) -> int:
        index = position // self.block_size
        block = track.table[index] if index < len(track.table) else -1
        assert block >= 0, f"{track.request.id!r} has no block for position {position}"
        return block
