"""Images that residents have not computed yet: when they are encoded, held and dropped."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32
from paceline.core.multimodal import NOTHING_EMBEDDED, Embedded, Encoding, ImageInput
from paceline.core.plan import Plan
from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.kv.encoder_cache import EncoderCache
from paceline.sched.admission.rows import Used
from paceline.sched.composition import Composition
from paceline.sched.slots import SlotTable
from paceline.sched.stats import Stats

ENCODED_EMBEDDINGS = "embeddings encoded"  # counted by limits: see `Used`
HELD_EMBEDDINGS = "embeddings held"
Encoded = tuple[tuple[Encoding, ...], Embedded]
NOTHING_ENCODED: Encoded = (), NOTHING_EMBEDDED


@dataclass(frozen=True, slots=True)
class Need:
    """An image with positions in a row of a step."""

    row: int
    slot: int
    index: int  # in the images of its request
    image: ImageInput
    start: int  # first position of the row
    first: int  # first position of the image in the row
    end: int


class ImagesAhead:
    """Images that residents have not passed, and the embeddings that they hold.

        positions   [ passed ][ image: held from the first chunk that reaches it ][ ... ][ image ]
        computed    ---------------->

    A resident holds an image from the step whose row reaches it until all its positions are
    computed and committed. Held embeddings stay in the cache, so a resident can always compute up
    to the end of the images that it holds, then drops them: there is no deadlock.

    is_ahead       by slot: does it have images that it has not passed?
    cuts_prompts   may a prompt take several steps?
    """

    def __init__(self, config: Config, table: SlotTable, stats: Stats) -> None:
        self.budget = config.encoder_budget  # embeddings that a step may encode
        self.cache = EncoderCache(config.encoder_capacity)
        self.is_ahead = np.zeros(config.step.max_num_seqs, np.bool_)
        self.cuts_prompts = config.step.enable_chunked_prefill
        self._is_whole = config.encoder.disable_chunked_mm_input
        self._table = table
        self._stats = stats
        self._next: dict[int, int] = {}  # by slot: index of the first image not passed
        self._held: dict[int, dict[int, str]] = {}  # by slot: identities by index

    @property
    def any(self) -> bool:
        """Does any resident have an image ahead?"""
        return bool(self._next)

    # -- residence ----------------------------------------------------------

    def join(self, sequence: Sequence, computed: int) -> None:
        """A sequence took a slot, with `computed` positions."""
        images = sequence.request.images
        index = sum(image.end <= computed for image in images)
        if index < len(images):
            self._next[sequence.slot] = index
            self.is_ahead[sequence.slot] = True

    def leave(self, slot: int) -> None:
        """A slot was released, or all its images are passed."""
        if self._next.pop(slot, None) is not None:
            self.is_ahead[slot] = False
            for identity in self._held.pop(slot, {}).values():
                self.cache.drop(identity)

    def landed(self, plan: Plan) -> None:
        """Keep what a committed step encoded, and drop images that residents have passed."""
        for one in plan.encode:
            self.cache.confirm(one.identity, plan.step)
        for slot in list(self._next):
            self._pass(slot, int(self._table.computed[slot]))

    def _pass(self, slot: int, computed: int) -> None:
        images, index = self._images(slot), self._next[slot]
        while index < len(images) and images[index].end <= computed:
            identity = self._held.get(slot, {}).pop(index, None)
            if identity is not None:
                self.cache.drop(identity)
            index += 1
        self._next[slot] = index
        if index == len(images):
            self.leave(slot)

    def forget(self, identities: Iterable[str]) -> None:
        """Remove images of a failed row: their embeddings may be the reason."""
        for identity in identities:
            self.cache.forget(identity)

    # -- for limits ---------------------------------------------------------

    def reach(self, sequence: Sequence, start: int, want: int, rest: int, used: Used) -> int:
        """Positions that a row may compute from `start` on: at most `want` of its `rest`, up to the
        first image that it cannot have. Adds its claims to `used`."""
        first = self._next.get(sequence.slot, 0)
        for image in sequence.request.images[first:]:
            if image.end <= start:
                continue
            if image.offset >= start + want:
                break
            is_cut = want < rest and image.end > start + want
            if (self._is_whole and is_cut) or not self._claim(image, used):
                return max(image.offset - start, 0)
        return want

    def _claim(self, image: ImageInput, used: Used) -> bool:
        """Claim an image for a row, after the claims of earlier rows; False if it does not fit."""
        name = f"image {image.identity}"
        if name in used or self.cache.is_held(image.identity):
            return True
        held, encoded = used.get(HELD_EMBEDDINGS, 0) + image.length, used.get(ENCODED_EMBEDDINGS, 0)
        if image.identity not in self.cache:
            encoded += image.length
        if held > self.cache.room or encoded > self.budget:
            return False
        used[HELD_EMBEDDINGS], used[ENCODED_EMBEDDINGS], used[name] = held, encoded, image.length
        return True

    def is_blocked(self, slot: int) -> bool:
        """Is the next position of a resident in an image that it does not hold?"""
        position = int(self._table.planned[slot])
        indices = range(self._next.get(slot, len(self._images(slot))), len(self._images(slot)))
        ahead = (self._images(slot)[index] for index in indices)
        image = next((one for one in ahead if one.end > position), None)
        if image is None or image.offset > position:
            return False
        return not self.cache.is_held(image.identity)

    # -- the rows of a step -------------------------------------------------

    def encode(self, step: Composition, number: int) -> Encoded:
        """Hold the images of the rows of step `number`. Returns what the step encodes, and which
        embeddings its positions read."""
        needs = list(self._needs(step)) if self._next else []
        if not needs:
            return NOTHING_ENCODED
        new = [one for one in needs if one.index not in self._held.get(one.slot, {})]
        for one in new:
            if one.image.identity in self.cache:  # before others are evicted
                self._hold(one)
        encode: list[Encoding] = []
        for one in new:
            identity = one.image.identity
            if one.index in self._held.get(one.slot, {}):
                self._stats.encoder_hits += 1
            else:
                if identity not in self.cache:
                    rows = self.cache.add(identity, one.image.length, number)
                    encode.append(Encoding(one.slot, one.index, identity, rows))
                else:
                    self._stats.encoder_hits += 1
                self._hold(one)
        self._stats.encoder_queries += len(new)
        self._stats.encoded += sum(len(one.rows) for one in encode)
        return tuple(encode), self._embedded(needs)

    def _needs(self, step: Composition) -> Iterator[Need]:
        for row in np.flatnonzero(self.is_ahead[step.slot]).tolist():
            slot, start = int(step.slot[row]), int(step.start[row])
            last = start + int(step.count[row])
            images = self._images(slot)
            for index in range(self._next[slot], len(images)):
                image = images[index]
                first, end = max(start, image.offset), min(last, image.end)
                if first < end:
                    yield Need(row, slot, index, image, start, first, end)

    def _hold(self, need: Need) -> None:
        self.cache.hold(need.image.identity)
        self._held.setdefault(need.slot, {})[need.index] = need.image.identity

    def _embedded(self, needs: list[Need]) -> Embedded:
        rows = [np.full(one.end - one.first, one.row, np.intp) for one in needs]
        offsets = [np.arange(one.first - one.start, one.end - one.start) for one in needs]
        sources = [self._rows(one) for one in needs]
        return Embedded(
            np.concatenate(rows), np.concatenate(offsets).astype(np.int32), np.concatenate(sources)
        )

    def _rows(self, need: Need) -> I32:
        offset = need.image.offset
        return self.cache[need.image.identity].rows[need.first - offset : need.end - offset]

    def _images(self, slot: int) -> tuple[ImageInput, ...]:
        return self._table.sequence(slot).request.images

    def check(self) -> None:
        self.cache.check()
        assert self._held.keys() <= self._next.keys()
        assert np.flatnonzero(self.is_ahead).tolist() == sorted(self._next)
        holds = [identity for held in self._held.values() for identity in held.values()]
        for identity in dict.fromkeys(holds):
            assert self.cache[identity].holders == holds.count(identity), "holders are miscounted"
        assert self.cache.held == sum(self.cache[one].length for one in dict.fromkeys(holds))
        for slot in self._next:
            assert self._table.resident[slot], "a vacant slot has images ahead"
