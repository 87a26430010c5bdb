"""Loads of KV through a connector, before requests are admitted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from paceline.core.events import Happened
from paceline.core.request import Request, Sequence
from paceline.core.settings.features import LoadingConfig
from paceline.kv.connector import Transfer, TransferEnd
from paceline.kv.fence import TransferTicket
from paceline.kv.hit import Hit, Loadable
from paceline.kv.keys import KEY_BYTES
from paceline.sched.admission.step_room import Shut, StepRoom
from paceline.sched.explain.journal import note
from paceline.sched.lifecycle.arrivals import Arrivals
from paceline.sched.lifecycle.timeouts import Overdue
from paceline.sched.queue import REMOTE_KV
from paceline.sched.state import SchedulerState

MOST_LOADS = 2  # per request; after these it computes evicted blocks
ASK_LATER = Shut("an answer of its connector", passes_over=True)
SLOTS_TAKEN = Shut("a slot that no loading request will take", passes_over=True)


Need = Callable[[Hit], int]
"""Free blocks that a request needs up to its last known token, given its prefix hit."""


class Arriving(Protocol):
    """A request that could be admitted."""

    @property
    def sequence(self) -> Sequence: ...

    @property
    def hit(self) -> Hit: ...

    @property
    def size(self) -> int: ...

    @property
    def most(self) -> int | None:
        """Most tokens of a prefix hit; None: all but the last known token."""
        ...


@dataclass(slots=True, eq=False)
class Loader:
    """The loads of a waiting request.

    computes   does it compute missing blocks instead of loading them?
    ticket     the transfer for which it is parked, perhaps one of another request
    slots      slots reserved for it while it loads
    rest       blocks reserved for it besides those being loaded
    """

    request: Request
    since: float  # of its first query, in seconds
    computes: bool = False
    loads: int = 0  # transfers begun
    ticket: TransferTicket | None = None
    slots: int = 0
    rest: int = 0
    loaded: set[bytes] = field(default_factory=set[bytes])  # keys of blocks, without the group

    def settle(self) -> None:
        """End the load, and its reservations."""
        self.ticket, self.slots, self.rest = None, 0, 0


@dataclass(frozen=True, slots=True, eq=False)
class BlockLoad:
    """A transfer into blocks that are in no block table."""

    found: Loadable
    transfer: Transfer
    content: Sequence  # the tokens and keys up to the last block of the transfer
    begun: float  # seconds


class Loads:
    """Parks requests while a connector loads their KV.

        waiting --offer--> parked, blocks fenced by a ticket --end--> waiting, blocks sealed

    A load begins when its request could be admitted, so that a slot and the blocks of all its known
    tokens are certain: other admissions leave `reserved` blocks free. When the load has ended, its
    blocks are cached and no request holds them. So loads cannot starve residents of blocks; a
    request whose loaded blocks were evicted loads once more or computes.

    A request that needs a block that another one is loading waits for that transfer.
    """

    def __init__(self, config: LoadingConfig, state: SchedulerState, arrivals: Arrivals) -> None:
        self._fails = config.kv_load_failure_policy == "fail"
        self._patience_s = config.kv_load_timeout_s
        self._state = state
        self._link = state.link
        self._arrivals = arrivals
        self._loaders: dict[str, Loader] = {}  # by request id
        self._loads: dict[TransferTicket, BlockLoad] = {}
        self._coming: dict[bytes, TransferTicket] = {}  # keys of blocks being loaded

    @property
    def enabled(self) -> bool:
        return self._link.loads

    @property
    def reserved(self) -> int:
        """Free blocks reserved for requests that are loading."""
        return sum([one.rest for one in self._loaders.values()])

    # -- before admission ---------------------------------------------------

    def begin(self, entrant: Arriving, need: Need, room: StepRoom) -> Shut | bool:
        """Load KV for a request that could be admitted, if the connector has any.

        Returns True if the request is parked, False if there is nothing to load, or why it cannot
        load now.
        """
        sequence, hit, index = entrant.sequence, entrant.hit, self._state.cache.index
        usable, have = self._usable(entrant), self._state.cache.on_device(hit)
        if usable <= have:
            if sequence.request.kv_transfer_params is not None:  # releases its blocks elsewhere
                self._link.offer(sequence.request, sequence.keys[:have], have)
            return False
        loader = self._loader(sequence)
        if not loader.computes and self._state.now - loader.since >= self._patience_s:
            self._give_up(loader, sequence, f"{self._link.name} did not answer in time")
        if loader.computes:
            return False
        if self._waits(loader, sequence, index.names(sequence.keys[have])):
            return True
        found = self._loadable(entrant, usable)
        if found is None:
            return ASK_LATER
        keys = found.keys + found.state
        if not keys:
            return False
        if self._waits(loader, sequence, keys[:1]):  # may be later with windows
            return True
        blocks = need(found.hit) + len(found.state)
        if blocks > self._state.cache.pool.size:  # there is room for it without the state alone
            return False
        return self._room(entrant.size, blocks, room) or self._load(loader, entrant, found, blocks)

    def _loadable(self, entrant: Arriving, usable: int) -> Loadable | None:
        """What the connector has for a request that could use so many blocks."""
        sequence, size = entrant.sequence, self._state.cache.block_size
        tokens = usable * size
        if self._state.states.enabled:
            most = len(sequence.tokens) - 1 if entrant.most is None else entrant.most
            tokens = min(tokens + size - 1, most)
        request = sequence.request
        offer, find = partial(self._link.offer, request), partial(self._link.find, request)
        return self._state.cache.loadable(sequence, tokens, entrant.hit, offer, find)

    def _usable(self, entrant: Arriving) -> int:
        """Full blocks of which it could load the KV; computes their keys."""
        cache, sequence = self._state.cache, entrant.sequence
        if not sequence.request.reads_cache:
            return 0
        cache.index.extend_keys(sequence)
        usable = cache.usable(sequence)
        return usable if entrant.most is None else min(usable, entrant.most // cache.block_size)

    def _waits(self, loader: Loader, sequence: Sequence, keys: Iterable[bytes]) -> bool:
        """Park a request if another one is loading a block that it needs."""
        coming = (self._coming[key] for key in keys if key in self._coming)
        if (ticket := next(coming, None)) is None:
            return False
        self._park(loader, sequence, ticket)
        return True

    def _loader(self, sequence: Sequence) -> Loader:
        found = self._loaders.get(sequence.id)
        if found is None:
            found = self._loaders[sequence.id] = Loader(sequence.request, self._state.now)
        return found

    def _room(self, size: int, need: int, room: StepRoom) -> Shut | None:
        if need > room.free:
            return Shut("blocks", need - room.free, lasting=True)
        loading = sum(one.slots for one in self._loaders.values())
        return SLOTS_TAKEN if size > room.vacant - loading else None

    def _load(self, loader: Loader, entrant: Arriving, found: Loadable, need: int) -> bool:
        sequence, state, held = entrant.sequence, self._state, found.hit.device
        pool = state.cache.pool
        before = pool.free
        pool.hold(held)  # first, so that `take` does not evict them
        keys = found.keys + found.state
        taken = tuple(pool.take(len(keys)))
        transfer = Transfer(self._link.ticket(), sequence.request, found.first, keys, taken)
        tokens = sequence.tokens[: found.blocks * state.cache.block_size].copy()
        known = sequence.serial, sequence.limit, sequence.arrival
        content = Sequence(sequence.request, *known, tokens, sequence.keys[: found.blocks])
        self._loads[transfer.ticket] = BlockLoad(found, transfer, content, state.now)
        self._coming |= dict.fromkeys(transfer.keys, transfer.ticket)
        self._link.fetch(transfer, held, after=state.step - 1)
        pool.drop((*held, *taken))  # the fence still holds them
        loader.loads += 1
        loader.slots, loader.rest = entrant.size, need - (before - pool.free)
        self._park(loader, sequence, transfer.ticket)
        return True

    def _park(self, loader: Loader, sequence: Sequence, ticket: TransferTicket) -> None:
        loader.ticket = ticket
        self._arrivals.park(sequence, REMOTE_KV)

    def admitted(self, sequence: Sequence, hit: Hit) -> int | None:
        """Forget the loads of an admitted request. Returns the tokens of its hit that were loaded;
        None if no connector loads."""
        if not self._link.loads:
            return None
        loader = self._loaders.pop(sequence.id, None)
        if loader is None or not loader.loaded:
            return 0
        cache = self._state.cache
        keys = sequence.keys[: cache.on_device(hit)]
        return sum(key in loader.loaded for key in keys) * cache.block_size

    # -- transfers that end -------------------------------------------------

    def settle(self, ended: Iterable[TransferEnd]) -> list[Overdue]:
        """Seal loaded blocks, and wake requests that waited for them or whose time is up. Returns
        the requests to end because their load failed."""
        failed: list[Overdue] = []
        for end in ended:
            load = self._loads.pop(end.ticket, None)
            if load is not None:
                failed += self._settle(load, end)
            self._state.cache.fences.lift(end.ticket)
        for name, loader in list(self._loaders.items()):
            sequence = self._state.live.get(name)
            if sequence is None or sequence.request is not loader.request:
                del self._loaders[name]
            elif loader.ticket is not None and self._state.now - loader.since >= self._patience_s:
                self._give_up(loader, sequence, f"{self._link.name} took too long")
        return failed

    def _settle(self, load: BlockLoad, end: TransferEnd) -> list[Overdue]:
        state, transfer = self._state, load.transfer
        good = len(transfer.blocks) if end.bad is None else end.bad
        if not self._has_rest(load):
            good = 0
        state.cache.adopt(load.found, load.content, transfer.blocks[:good])
        for key in transfer.keys:
            if self._coming.get(key) == end.ticket:  # not if a later load brings it too
                del self._coming[key]
        failed: list[Overdue] = []
        for name, loader in self._loaders.items():
            if loader.ticket != end.ticket or (sequence := state.live.get(name)) is None:
                continue
            if loader.request is not transfer.request or loader.request is not sequence.request:
                self._wake(loader, sequence)
                continue
            loaded = {key[:KEY_BYTES] for key in load.found.keys[:good]}
            loader.loaded |= loaded
            tokens = len(loaded) * state.cache.block_size
            cause = f"{self._link.name} in {state.now - load.begun:.3f} s"
            note(sequence, Happened.FETCHED, state.now, state.step, tokens, cause)
            reason = f"{self._link.name}: {end.reason or 'the transfer failed'}"
            if end.bad is None:
                loader.computes = loader.loads >= MOST_LOADS
                self._wake(loader, sequence)
            elif self._fails:
                loader.settle()
                failed.append(Overdue(sequence, f"its KV could not be loaded from {reason}"))
            else:
                self._give_up(loader, sequence, reason)
        return failed

    def _has_rest(self, load: BlockLoad) -> bool:
        """Does the device still have the blocks of the prefix before the loaded ones? The step that
        was to fill them may have failed; without them, the loaded ones cannot be found."""
        cache, loaded = self._state.cache, {*load.transfer.keys}
        read = cache.index.read_keys(load.content, len(load.content.tokens))
        return all(cache.pool.has(key) for key in read if key not in loaded)

    def _give_up(self, loader: Loader, sequence: Sequence, cause: str) -> None:
        """Let a request compute its missing blocks."""
        loader.computes = True
        note(sequence, Happened.NOT_FETCHED, self._state.now, self._state.step, cause=cause)
        self._wake(loader, sequence)

    def _wake(self, loader: Loader, sequence: Sequence) -> None:
        loader.settle()
        if sequence.parked == REMOTE_KV:
            self._arrivals.wake(sequence)
