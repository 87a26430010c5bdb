"""A runner with no model that notices every mistake in the KV cache.

Each KV cell holds a digest of the whole prefix up to its position, so two cells are
equal only if everything before them is. When all rows of a step have written, each reads
the positions that attention would, in every group through the block table that the plans gave it,
and each read is checked: a wrong block, an early reuse, a prefix hit on something never computed
or on another tenant's content fails at the cell where it happens. Rows of the
encoder store are checked likewise.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from paceline.core.arrays import I32
from paceline.core.masks import TokenMasks
from paceline.core.plan import NO_BLOCK, Admitted, Candidates, Failed, Pairs, Plan, StepResult
from paceline.core.pool_spans import pool_spans, pooled_span
from paceline.core.pooling import PooledSpan
from paceline.core.settings.features import FULL_ATTENTION
from paceline.testing.reference import (
    Allowed,
    Track,
    anything,
    extended,
    likeliest,
    logprobs,
    mix,
    next_token,
    start_digest,
)
from paceline.testing.working_states import WorkingStates


def hidden_state(token: int, position: int) -> int:
    """What the oracle has in place of a hidden state."""
    return (7 * token + 3 * position + 1) % 101


GARBAGE = -2  # what a rejected draft leaves behind
NO_NUMBER = -3  # and below: what a spoiled row leaves behind, by where it was spoiled


@dataclass(frozen=True, slots=True)
class Spoil:
    """A row that wrote no numbers: who had the slot, in which step, and what was due instead."""

    slot: int
    epoch: int
    step: int
    due: dict[int, int]  # digests by position


def of_group(digest: int, group: int) -> int:
    """What the layers of an attention group write for a digest: each group something else."""
    return mix(digest, group) if group and digest >= 0 else digest


class OracleRunner:
    """Runs plans in order, as one device stream would.

    `accept` is the chance that a draft turns out right. Rejected drafts leave garbage in their
    cells, as they do on a device. Copies to the host are done late, as a fence allows:
    `lag` steps after the one that lists them, when that one has written, or in `settle`. Until
    then the step may also still read from the host, so no copy may overwrite what it reads.

    The next row of a label in `spoiled` writes no numbers, and so does every row that reads some
    of them; of these rows, those that sample fail.

    `masks` says which tokens rows may sample, and `groups` which positions layers read. With
    `has_states`, there are layers that keep a state, in `_states`. Blocks of `block_size` positions
    are `cells`, those of the host are in `host`, `reading` and `_leaving` (after `_lag` steps);
    `tracks` and `embeddings` are by slot and row; `computed` and `spoils` count what happened;
    `_random` decides about drafts, and tokens are below `vocab`.
    """

    groups = FULL_ATTENTION
    has_states = False
    weights = ""  # with others, all that is computed differs, as with another salt

    def __init__(
        self,
        blocks: int,
        block_size: int,
        vocab: int,
        accept: float = 0.7,
        seed: int = 0,
        host_blocks: int = 0,
        lag: int = 0,
    ) -> None:
        self.block_size, self.vocab, self.accept = block_size, vocab, accept
        self.cells = [[-1] * block_size for _ in range(blocks)]
        self.host: list[list[int] | None] = [None] * host_blocks
        self._lag = lag
        self._leaving: deque[tuple[int, Pairs, dict[int, list[int]]]] = deque()  # by step
        self.reading: deque[tuple[int, set[int]]] = deque()  # host blocks, by step
        self.tracks: dict[int, Track] = {}
        self.computed = 0  # positions, over all steps
        self.spoiled: set[str] = set()
        self.masks: TokenMasks | None = None
        self.spoils: list[Spoil] = []
        self.embeddings: dict[int, tuple[str, int]] = {}  # content and place, by row of the store
        self._random = Random(seed)
        self._states = WorkingStates(self)

    def run(self, plan: Plan) -> StepResult:
        states = self._states.before(plan.states)
        self.lose(plan)
        for source, target in plan.copies:
            self.copy(source, target)
        for source, target in plan.swap_in:
            self.restore(source, target)
        self._states.begin(plan.states, self.tracks)
        self._encode(plan)
        result = self._result(plan)
        self._states.end(plan.states)
        for target in (*(target for _, target in plan.swap_out), *states):
            read = any(target in blocks for _, blocks in self.reading)
            assert not read, f"host block {target} is overwritten while a step reads it"
            self.host[target] = None
        returned = {block for _, blocks in plan.states.swap_in for block in blocks}
        self.reading.append((plan.step, returned.union(source for source, _ in plan.swap_in)))
        self._leaving.append((plan.step, plan.swap_out, states))
        self.settle(plan.step - self._lag)
        return result

    def settle(self, step: int) -> None:
        """The copies of steps up to this one are done by now; due before it is committed."""
        while self.reading and self.reading[0][0] <= step:
            self.reading.popleft()
        while self._leaving and self._leaving[0][0] <= step:
            _, copies, states = self._leaving.popleft()
            for source, target in copies:
                self.store(source, target)
            for target, content in states.items():
                self.host[target] = content

    # -- memory, which another kind of store may stand in for ----------------

    def seen(self, block: int, offset: int) -> int:
        return self.cells[block][offset]

    def put(self, block: int, offset: int, digest: int) -> None:
        self.cells[block][offset] = digest

    def copy(self, source: int, target: int) -> None:
        self.cells[target] = list(self.cells[source])

    def store(self, source: int, target: int) -> None:
        """To the host."""
        self.host[target] = list(self.cells[source])

    def restore(self, source: int, target: int) -> None:
        """From the host."""
        self.cells[target] = list(self.on_host(source))

    def on_host(self, block: int) -> list[int]:
        content = self.host[block]
        assert content is not None, f"host block {block} is read before it was written"
        return content

    # -- plans --------------------------------------------------------------

    def lose(self, plan: Plan) -> None:
        """Take note of a plan without computing it, as a device that fails in it does."""
        for slot in plan.released:
            self.tracks.pop(slot, None)
        for new in plan.admitted:
            self._admit(new)
        for slot, tokens in plan.chosen:
            track = self.tracks[slot]
            track.tokens[track.position :] = tokens
        for one in plan.encode:
            for row in one.rows.tolist():
                self.embeddings.pop(row, None)
        for group, grown in enumerate((plan.grown, *plan.grown.more)):
            for slot, index, block in zip(
                grown.slot.tolist(), grown.index.tolist(), grown.block.tolist(), strict=True
            ):
                self.tracks[slot].map(group, index, block)

    def _admit(self, new: Admitted) -> None:
        assert new.slot not in self.tracks, f"slot {new.slot} was not released"
        assert len(new.more) == len(self.groups) - 1, f"{new.request.id!r} has other groups"
        salted = replace(new.request, cache_salt=new.request.cache_salt + self.weights)
        self.tracks[new.slot] = Track.of(replace(new, request=salted) if self.weights else new)

    def _encode(self, plan: Plan) -> None:
        for one in plan.encode:
            image = self.tracks[one.slot].request.images[one.image]
            assert (image.identity, image.length) == (one.identity, len(one.rows)), "another image"
            for offset, row in enumerate(one.rows.tolist()):
                self.embeddings[row] = image.identity, offset
        slots, read = plan.rows.slot.tolist(), plan.embedded
        for row, offset, source in zip(
            read.row.tolist(), read.offset.tolist(), read.source.tolist(), strict=True
        ):
            track = self.tracks[slots[row]]
            track.reads[track.position + offset] = source

    def _result(self, plan: Plan) -> StepResult:
        rows, labels = plan.rows, plan.rows.labels
        width = 1 + (int(rows.drafts.max()) if len(rows) else 0)
        ids = np.full((len(rows), width), -1, np.int32)
        count = np.zeros(len(rows), np.int32)
        begins = [self.tracks[slot].position for slot in rows.slot.tolist()]
        for row, slot in enumerate(rows.slot.tolist()):
            track = self.tracks[slot]
            assert track.request.id == labels[row], f"slot {slot} has another request"
            ahead = int(plan.start[row]) - track.position
            assert ahead == 0 or (ahead > 0 and track.drafted), (
                f"{track.request.id!r} starts at the wrong position"
            )
            track.allowed = self._mask(plan, row)
            new = self._row(
                track, int(rows.count[row]), int(rows.drafts[row]), bool(rows.samples[row])
            )
            ids[row, : len(new)] = new
            count[row] = len(new)
        unread = [track.request.id for track in self.tracks.values() if track.reads]
        assert not unread, f"{unread} have embeddings for positions that they do not compute"
        for slot, begin in zip(rows.slot.tolist(), begins, strict=True):
            self._read(self.tracks[slot], begin)  # attention reads when all rows have written
        failed = [row for row in self._spoil(plan, begins) if rows.samples[row]]
        count[failed] = 0
        lost = tuple(Failed(row, f"the row of {labels[row]!r} has no numbers") for row in failed)
        pooled = self._pooled(plan, begins)
        return replace(self._scored(plan, ids, count), failed=lost, pooled=pooled)

    def _pooled(self, plan: Plan, begins: list[int]) -> tuple[PooledSpan, ...]:
        """What requests pool: the hidden state of a position is `hidden_state`."""
        tracks = {slot: self.tracks[slot] for slot in plan.rows.slot.tolist()}
        asking = {slot: one.request for slot, one in tracks.items() if one.request.pooling}
        spans = pool_spans(plan, begins, asking) if asking else []
        found: list[PooledSpan] = []
        for span in spans:
            prompt = asking[int(plan.rows.slot[span.row])].prompt
            places = range(span.first, span.first + span.count)
            total = sum(hidden_state(int(prompt[place]), place) for place in places)
            found.append(pooled_span(plan, span, np.array([total], np.float32)))
        return tuple(found)

    def _mask(self, plan: Plan, row: int) -> Allowed:
        """What a row may sample: it depends on what it has sampled in this step before."""
        masks = self.masks
        if masks is None or not masks.wants(plan):
            return anything

        def allowed(new: list[int]) -> list[int] | None:
            drafts = np.array([new], np.int32) if new else None
            found = masks.fill(plan, np.array([row]), drafts)
            if found is None or len(found.line) <= len(new):  # it has ended
                return None
            return np.flatnonzero(found.allowed(self.vocab)[-1]).tolist()

        return allowed

    def _spoil(self, plan: Plan, begins: list[int]) -> list[int]:
        """Rows that compute no numbers, with those that read what such rows wrote."""
        rows, labels = plan.rows, plan.rows.labels
        bad: list[int] = []
        suspects = range(len(rows)) if self.spoils or self.spoiled else range(0)
        while new := [
            row
            for row in suspects
            if row not in bad
            and (labels[row] in self.spoiled or self._reads_no_numbers(plan, row, begins[row]))
        ]:
            for row in new:
                slot, epoch = int(rows.slot[row]), int(rows.epoch[row])
                track = self.tracks[slot]
                written = range(begins[row], begins[row] + int(rows.count[row]))
                due = {position: self._seen(track, 0, position) for position in written}
                for position in written:
                    self._write(track, position, NO_NUMBER - len(self.spoils))
                if self.has_states:
                    self._states.spoil(slot, NO_NUMBER - len(self.spoils))
                self.spoils.append(Spoil(slot, epoch, plan.step, due))
            bad += new
        self.spoiled.difference_update(labels)
        return sorted(bad)

    def _reads_no_numbers(self, plan: Plan, row: int, begin: int) -> bool:
        track = self.tracks[int(plan.rows.slot[row])]
        read = self._positions_read(track, begin)
        return self._states.is_spoiled(track.slot) or any(
            self._seen(track, group, position) <= NO_NUMBER for group, position in read
        )

    def spoil_in(self, block: int) -> Spoil | None:
        """Where the first cell of a block that is no number comes from, if there is one."""
        seen = [self.seen(block, offset) for offset in range(self.block_size)]
        return next((self.spoils[NO_NUMBER - cell] for cell in seen if cell <= NO_NUMBER), None)

    def _scored(self, plan: Plan, ids: I32, count: I32) -> StepResult:
        """With log-probabilities and candidates for the rows that ask for them."""
        tracks = [self.tracks[slot] for slot in plan.rows.slot.tolist()]
        if not any(track.request.silent for track in tracks):
            return StepResult(ids, count)
        logprob = np.zeros(ids.shape, np.float32)
        most = max(1, *(track.request.candidates for track in tracks))
        found = Candidates(
            np.full((len(tracks), most), -1, np.int32), np.zeros((len(tracks), most), np.float32)
        )
        for row, track in enumerate(tracks):
            if track.request.beam_width and count[row]:
                most, allowed = track.request.candidates, track.allowed([])
                best = likeliest(track.digests[-1], self.vocab, most, allowed)
                for place, (token, value) in enumerate(best):
                    found.ids[row, place], found.logprob[row, place] = token, value
            for place in range(int(count[row])):
                before = track.digests[len(track.digests) - int(count[row]) + place]
                logprob[row, place] = logprobs(before, self.vocab)[ids[row, place]]
        return StepResult(ids, count, logprob, found)

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
        allowed = track.allowed(new)
        token = next_token(track.request, track.digests[-1], self.vocab, allowed)
        if not track.request.beam_width:  # the host chooses the tokens of beams
            track.tokens.append(token)
        track.sampled = True
        new.append(token)

    def _compute(self, track: Track) -> None:
        """One position further: its KV is written, and everything before it was read."""
        self._embed(track)
        before = track.digests[-1] if track.digests else start_digest(track.request)
        digest = extended(track.request, before, track.position, track.tokens[track.position])
        if self.has_states:
            self._states.advance(track, digest)
        self._write(track, track.position, digest)
        track.digests.append(digest)
        track.position += 1
        self.computed += 1

    def _embed(self, track: Track) -> None:
        """A position of an image has its embedding, and no other position has one."""
        position, name = track.position, track.request.id
        covering = [one for one in track.request.images if one.offset <= position < one.end]
        due = [(one.identity, position - one.offset) for one in covering]
        source = track.reads.pop(position, None)
        found = [] if source is None else [self.embeddings.get(source)]
        assert found == due, f"{name!r} position {position} has the embedding {found}, not {due}"

    def _positions_read(self, track: Track, begin: int) -> Iterator[tuple[int, int]]:
        """What a row reads that began at position `begin`: groups and positions."""
        for group, kind in enumerate(self.groups):
            for position in range(kind.unread(begin), track.position):
                yield group, position

    def _read(self, track: Track, begin: int) -> None:
        for group, position in self._positions_read(track, begin):
            seen, due = self._seen(track, group, position), track.digests[position]
            if seen <= NO_NUMBER:
                seen = of_group(self.spoils[NO_NUMBER - seen].due[position], group)
            assert seen == of_group(due, group), (
                f"{track.request.id!r} position {position}, block "
                f"{self._block(track, group, position)}: stale or foreign KV in group {group}"
            )

    def _seen(self, track: Track, group: int, position: int) -> int:
        return self.seen(self._block(track, group, position), position % self.block_size)

    def _write(self, track: Track, position: int, digest: int) -> None:
        for group in range(len(self.groups)):
            block, offset = self._block(track, group, position), position % self.block_size
            self.put(block, offset, of_group(digest, group))

    def _block(self, track: Track, group: int, position: int) -> int:
        block = track.block(group, position // self.block_size)
        assert block != NO_BLOCK, (
            f"{track.request.id!r} has no block for position {position} in group {group}"
        )
        return block
