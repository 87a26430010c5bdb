"""The result of a lookup: the cached prefix of a sequence, where it is, and what can be loaded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.plan import Blocks, Pairs
from paceline.kv.keys import digest

INDEX_BYTES = 4  # of a block's number in its key
SUFFIX = b"state"

Owner = tuple[int, int]  # slot and epoch of the sequence whose state it is


@dataclass(frozen=True, slots=True)
class StatePlace:
    """A position of a sequence at which there may be a state: `key` is that of the last full block
    before it, `rest` the content from there on."""

    tokens: int
    key: bytes
    rest: bytes

    def names(self, blocks: int) -> tuple[bytes, ...]:
        """The keys of the blocks of its state, which are longer than those of blocks of KV."""
        content = digest(self.key + self.rest) + SUFFIX
        return tuple(content + index.to_bytes(INDEX_BYTES, "big") for index in range(blocks))


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state of a sequence behind its first `tokens` positions.

        b0 b1 b2 | p . . .        KV in blocks: the key of `place` is that of b2
        s7 s3    | c7             `blocks` hold the state, `partial` the KV behind b2, if any

    All its blocks are in the pool under keys of their own, mostly without a holder. It exists as
    long as each of them is there. `step` writes it; None: it is not planned yet. `uses` counts its
    hits, and `point` says what made the position one to keep.
    """

    number: int
    place: StatePlace
    blocks: Blocks
    partial: Blocks  # one of each attention group; empty behind whole blocks
    owner: Owner
    step: int | None = None
    uses: int = 0
    point: str = ""

    @property
    def tokens(self) -> int:
        return self.place.tokens

    @property
    def all_blocks(self) -> Blocks:
        return self.blocks + self.partial

    def names(self) -> tuple[bytes, ...]:
        """The keys of its blocks in the pool."""
        return self.place.names(len(self.all_blocks))


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix that need not be computed, in one part per tier. Each part continues the one before.

        device    host          to compute
        b4 b7     h2 h0 h5      . . . .

    The device part can be used at once. The host part must be loaded into device blocks first; the
    step that admits the sequence does so before it computes.
    """

    device: tuple[int, ...]  # by index; of several attention groups, all that they read
    tokens: int  # of all parts
    host: tuple[int, ...] = ()
    groups: tuple[Blocks, ...] = ()  # `device` by group and index, if there are several groups
    snapshot: Snapshot | None = None  # where it ends, if the model keeps states
    cached: int = 0  # with states: tokens whose KV was found, with a snapshot or without

    def loads(self, blocks: Sequence[int]) -> Pairs:
        """The copies that the hit needs before it can be used: pairs of a host block and a device
        block. `blocks` are the device blocks of the sequence, in order."""
        first = len(self.device)
        return tuple(zip(self.host, blocks[first : first + len(self.host)], strict=True))


MISS = Hit((), 0)


Offer = Callable[[Sequence[bytes], int], int | None]
"""How many blocks after the first ones a connector has, as `Connector.offer` says it."""

Find = Callable[[Sequence[bytes]], int | None]
"""Which of some keys a connector has, as `Connector.find` says it."""


@dataclass(frozen=True, slots=True)
class Loadable:
    """Blocks to load, and the prefix that a sequence has with them.

    hit      what of that prefix is on the device; it stays there meanwhile
    blocks   full blocks of the prefix
    first    the first index that a block is loaded for
    keys     of the blocks to load, by index; none: it is not worth loading
    place    where the state to load is, if the model has states
    state    the keys of its blocks
    """

    hit: Hit
    blocks: int
    first: int
    keys: tuple[bytes, ...]
    place: StatePlace | None = None
    state: tuple[bytes, ...] = ()


MOST_QUESTIONS = 8  # each may take a connector a while, and windows could ask for every length


class Offers:
    """Finds the first of some blocks that neither the device nor a connector has.

    After `MOST_QUESTIONS`, only the device counts.
    """

    def __init__(self, offer: Offer, on_device: Callable[[bytes], bool]) -> None:
        self._offer, self._on_device = offer, on_device
        self._offered: set[bytes] = set()
        self._questions = 0
        self.must_ask_later = False  # then what is not known yet counts as there

    def first_absent(self, keys: Sequence[bytes]) -> int | None:
        """The index of the first key without a block; None: all have one."""
        here, offered = self._on_device, self._offered
        absent = [at for at, key in enumerate(keys) if not here(key) and key not in offered]
        if not absent:
            return None
        if self._questions >= MOST_QUESTIONS:
            return absent[0]
        self._questions += 1
        wanted = [keys[at] for at in absent]
        number = self._offer(wanted, 0)
        if number is None:
            self.must_ask_later = True
            return None
        offered.update(wanted[:number])
        return absent[number] if number < len(absent) else None
