"""Base class of eviction orders: which cached block without a holder is reused first."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from paceline.core import plugins
from paceline.core.plan import Blocks
from paceline.core.request import Sequence
from paceline.core.settings.config import CacheConfig


class Clock(Protocol):
    @property
    def now(self) -> float:
        """Seconds, as passed to the scheduler."""
        ...


class StoppedClock:
    """The clock of a cache that serves no requests."""

    now = 0.0


class IdleBlocks(Protocol):
    """Free blocks with content, in some order of reuse: an OrderedDict, or what behaves like it."""

    def __len__(self) -> int: ...

    def __contains__(self, block: object, /) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def __reversed__(self) -> Iterator[int]: ...

    def __setitem__(self, block: int, value: None, /) -> None:
        """A block has lost its last holder."""
        ...

    def __delitem__(self, block: int, /) -> None:
        """A block has a holder again."""
        ...

    def pop(self, block: int, /) -> None:
        """A block has lost its content."""
        ...

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Remove the block to reuse next; `last` is False."""
        ...

    def move_to_end(self, key: int, last: bool = True) -> None:
        """Reuse a block before all others; `last` is False."""
        ...

    def clear(self) -> None: ...


class Shortfall(NamedTuple):
    """Tokens of a prompt that had been cached and were evicted, and how long ago."""

    tokens: int
    seconds: float


class Eviction:
    """An order of idle blocks. It hears of requests, and may learn from them when they come back.

    The blocks of an `UnkeyedRun` must be reused deepest first. A subclass that sets `watches` is
    told what a request finds in the cache when it is submitted, which costs a lookup.
    """

    watches = False
    idle: IdleBlocks

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock

    def asked(self, sequence: Sequence, blocks: Blocks) -> None:
        """A request was submitted, and `blocks` hold the beginning of its prompt. The keys of all
        its full blocks have been computed."""

    def ended(self, sequence: Sequence) -> None:
        """A request ended, admitted or not."""

    def shortfall(self, sequence: Sequence, tokens: int) -> Shortfall | None:
        """What a request that is admitted with `tokens` in the cache misses; None: nothing that is
        known. It answers once for each request."""
        return None

    def left(self, sequence: Sequence, blocks: list[int]) -> None:
        """A sequence leaves its slot. `blocks` are its full ones by index, whose content can be
        found; they lose a holder next."""

    def kept(self, sequence: Sequence, blocks: Blocks, tokens: int) -> None:
        """Blocks without a holder keep the state of a sequence behind `tokens` positions."""

    def used(self, sequence: Sequence, blocks: Blocks) -> None:
        """A request begins with the state in these blocks."""

    def check(self) -> None:
        """Verify every invariant."""


class Lru(Eviction):
    """The least recently used block first; of a sequence, the deepest one."""

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self.idle = OrderedDict[int, None]()


KNOWN: Mapping[str, str | type[Eviction]] = {
    "lru": Lru,
    "sessions": "paceline.kv.evictions.sessions.Sessions",
}


def load(config: CacheConfig, clock: Clock) -> Eviction:
    """Load an order by its name in KNOWN, or by dotted path."""
    return plugins.load("eviction", config.eviction, KNOWN, Eviction)(config, clock)
