"""The interface of connectors, which keep KV outside of the device or send it elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from paceline.core import plugins
from paceline.core.errors import ConfigError, RequestError
from paceline.core.events import Medium
from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.fence import TransferTicket

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Blocks that a connector reads or writes.

    The scheduler fences the blocks until `poll` returns the end of the ticket: until then they are
    neither freed nor written by a step, whatever becomes of the request.
    """

    ticket: TransferTicket
    request: Request
    first: int  # which block of the sequence is blocks[0], if there is one attention group
    keys: tuple[bytes, ...]  # keys[i] names the content of blocks[i]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferEnd:
    """The connector no longer reads or writes the blocks of a transfer.

    Content that follows a bad block cannot be used, so one number says which blocks are bad.
    """

    ticket: TransferTicket
    bad: int | None = None  # the first of its blocks without the right content; None: all have it
    reason: str = ""  # why not all of them have it


TransferKind = Literal["load", "store", "hand over"]


class TransferObserver(ABC):
    """Sees the transfers of a scheduler, on the engine's thread. It is no part of the scheduler's
    state."""

    @abstractmethod
    def begun(self, kind: TransferKind, transfer: Transfer) -> None:
        """The connector has this transfer."""

    @abstractmethod
    def ended(self, end: TransferEnd) -> None:
        """The connector reported an end."""


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Blocks that lie one after another in memory."""

    address: int  # of the first one
    blocks: int
    block_bytes: int
    device: Literal["cpu", "cuda"] = "cpu"
    index: int = 0  # of the GPU


class BlockStore(Protocol):
    """The blocks of the device as bytes. Any thread may call it.

    A connector may read the blocks of a `store` and write those of a `fetch`, until it reports the
    end of the transfer. The scheduler orders that with the steps: blocks are stored when the step
    that filled them has been committed, and loaded blocks are in no table before their end was
    reported. So a copy needs no other synchronization with the computation.
    """

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    @property
    def layout(self) -> str:
        """Names the model and the layout of a block: only stores with the same layout may exchange
        content. Letters, digits and hyphens."""
        ...

    @property
    def memory(self) -> BlockMemory | None:
        """Where the blocks are, for connectors that move them without a copy; None: nowhere."""
        ...

    def host_memory(self, rows: int) -> Bytes:
        """Host memory for blocks, [rows, block_bytes]: page-locked if the blocks are on a GPU, so
        that copies are as fast as they can be. Slow to allocate."""
        ...

    def read(self, blocks: Sequence[int]) -> Bytes:
        """The content of blocks, [blocks, block_bytes]: a copy, complete on return."""
        ...

    def read_into(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        """Copy the content of blocks to rows of bytes; complete on return."""
        ...

    def write(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        """Replace the content of blocks by rows of bytes; complete on return."""
        ...


News = Callable[[], None]
"""Wakes the engine, so that it polls soon. Any thread may call it."""


Changed = Callable[[Sequence[bytes], bool], None]
"""The content of keys is stored or removed. For the engine's thread."""


def nothing_changed(keys: Sequence[bytes], is_there: bool) -> None:
    """No KV events are published."""


class Connector(ABC):
    """Supplies and takes KV by content key. Its class has one file in `kv/connectors`.

    All methods are called on the engine's thread and return at once: work that may block belongs on
    a thread of the connector's own. The same answers to the same calls give the same plans.

    A key is the same in every process for the same weights, tokens, adapter, salt and images. It
    does not name the layout of a block: put `store.layout` in front of it where content outlives
    the engine or is shared. With several attention groups, a key names a block of one group; of a
    prefix, only the blocks that a group reads are asked for. A connector whose `takes_groups` is
    not set has one group, which keeps the KV of all positions. A state has further blocks, with
    longer keys, which come together.
    """

    hands_over = False  # `finished` is called
    needs_memory = False  # it moves blocks without a copy, and needs `BlockStore.memory`
    takes_groups = False  # keys of several attention groups may come, in any order
    takes_states = False  # keys of states may come, and `find` is called
    medium: Medium | None = None  # where it keeps content, if it says what comes and goes

    def __init__(self, config: ConnectorConfig) -> None:
        """ConfigError if an option is wrong."""
        self.config = config
        self.changed: Changed = nothing_changed

    def attach(self, store: BlockStore, news: News) -> None:  # noqa: B027
        """Called once, before any other method: the blocks that are read and written, and what to
        call when `poll` or `offer` has something new to say."""

    def watch(self, changed: Changed) -> None:
        """Call `changed` when content comes or goes, if `medium` is set. Called before `attach`, if
        KV events are published."""
        self.changed = changed

    def check(self, request: Request) -> None:
        """RequestError if it cannot do what the request's `kv_transfer_params` ask for."""
        if request.kv_transfer_params:
            raise RequestError(
                f"kv_connector {self.config.kv_connector!r} has no use for kv_transfer_params; "
                "remove them"
            )

    # -- loading ------------------------------------------------------------

    @abstractmethod
    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        """How many blocks after the first `have` it could supply; None: ask again later.

        `keys` are those of all full blocks that the request could load. The request is not
        admitted while the answer is None. It is asked again in later steps, and computes its prompt
        after `kv_load_timeout_s`. An offer is no promise: the load may fail.
        """

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        """Which of `keys`, deepest first, is the first that it could supply; their number: none;
        None: ask again later. Each is that of the first block of a state. They are many, because a
        state may be at any position: called if `takes_states` is set."""
        return len(keys)

    @abstractmethod
    def fetch(self, transfer: Transfer) -> None:
        """Begin to write the content of `transfer.keys` into `transfer.blocks`."""

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        """Keep what it has of `keys` for longer, since it is in use. Returns how many of the first
        ones need not be stored. `store` follows with the others, unless there are none."""
        return 0

    @abstractmethod
    def store(self, transfer: Transfer) -> None:
        """Begin to read `transfer.blocks`, to supply their content later.

        The transfer ends when the blocks have been read, before the content is written to a disk or
        sent. A store that cannot be made ends too: it is the connector's loss.
        """

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        """A request has ended by itself, and all its full blocks are in `transfer`. Called if
        `hands_over` is set.

        None: nothing is kept. A mapping is reported to the client as `kv_transfer_params`, and the
        blocks are kept until `poll` returns the end of the ticket.
        """
        return None

    # -- both ---------------------------------------------------------------

    @abstractmethod
    def poll(self) -> Sequence[TransferEnd]:
        """The transfers that ended since the previous call, each once, in any order."""

    def forget(self, keys: Sequence[bytes]) -> None:  # noqa: B027
        """The content of these keys is wrong; do not offer it again."""

    def clear(self) -> None:  # noqa: B027
        """Forget all content, also that of stores that are under way."""

    def close(self) -> None:  # noqa: B027
        """End all work. No method is called afterwards."""


def load(config: ConnectorConfig) -> Connector:
    """The connector by module name in `connectors`, or by dotted path to a class."""
    return named(config.kv_connector)(config)


def named(name: str) -> type[Connector]:
    """The class of a connector. ConfigError if there is none of that name."""
    return plugins.load("kv_connector", name, "paceline.kv.connectors", Connector)


def takes_groups(name: str) -> bool:
    """Whether the connector of a name transfers blocks of several attention groups."""
    return named(name).takes_groups


def takes_states(name: str) -> bool:
    """Whether the connector of a name transfers states of sequences."""
    return named(name).takes_states


def needs_memory(name: str) -> bool:
    """Whether the connector of a name needs to know where blocks lie."""
    return named(name).needs_memory


def options(
    config: ConnectorConfig, positive: Sequence[str] = (), /, **defaults: Any
) -> dict[str, Any]:
    """The options of a connector, completed with defaults. ConfigError names an unknown option, one
    of another type than its default, or a number that is negative or not finite, or that is 0 and
    one of those in `positive`."""
    given = config.kv_connector_extra_config
    for name, value in given.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise ConfigError(
                f"kv_connector {config.kv_connector!r} has no option {name!r}: it has {known}"
            )
        kind = cast("type[Any]", type(defaults[name]))
        wrong = isinstance(value, bool) != (kind is bool)
        if wrong or not isinstance(value, (int, float) if kind is float else kind):
            raise ConfigError(f"{name} is {value!r}; it must be of type {kind.__name__}")
        if kind in (int, float) and not 0 <= value < inf:
            raise ConfigError(f"{name} is {value!r}; it must be finite and not negative")
        if name in positive and not value:
            raise ConfigError(f"{name} is {value!r}; it must be positive")
    return defaults | dict(given)
