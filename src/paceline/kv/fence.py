"""Fences: blocks that must not be reused before a step or a transfer is over."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paceline.core.plan import Pairs
from paceline.kv.pool import BlockPool


@dataclass(frozen=True, slots=True)
class StepTicket:
    """Over when the scheduler commits the step. Steps end in order."""

    step: int


@dataclass(frozen=True, slots=True)
class TransferTicket:
    """Over when the transfer is reported as done. Transfers end in any order."""

    id: int


Ticket = StepTicket | TransferTicket


@dataclass(frozen=True, slots=True)
class Fence:
    """The blocks that a step or a transfer copies, and what its end makes true."""

    ticket: Ticket
    device: tuple[int, ...] = ()
    host: tuple[int, ...] = ()
    arriving: tuple[int, ...] = ()  # serials whose device blocks are complete only then
    stored: tuple[int, ...] = ()  # serials whose content is on the host only then
    keys: tuple[tuple[int, bytes], ...] = ()  # provisional: host blocks and the keys they will have


class Fences:
    """A fence is one more holder of each of its blocks, until its ticket is over.

        plan 7      swap_out (d3, h0)     d3: held by the fence alone    h0: sequence, fence
        commit 7                          d3: free                       h0: sequence

    Fences of steps stand in the order of steps and are lifted in that order. Fences of transfers
    are lifted one ticket at a time. A failed step says nothing about transfers.
    """

    def __init__(self, device: BlockPool, host: BlockPool) -> None:
        self._device, self._host = device, host
        self._steps: deque[Fence] = deque()  # tickets are StepTickets that never fall
        self._transfers: dict[TransferTicket, list[Fence]] = {}

    def __iter__(self) -> Iterator[Fence]:
        yield from self._steps
        for fences in self._transfers.values():
            yield from fences

    def add(self, fence: Fence) -> None:
        """Raise a fence: hold its blocks until its ticket is over."""
        self._device.hold(fence.device)
        self._host.hold(fence.host)
        if isinstance(fence.ticket, TransferTicket):
            self._transfers.setdefault(fence.ticket, []).append(fence)
            return
        assert not self._steps or step_of(self._steps[-1]) <= fence.ticket.step, (
            "steps run in order"
        )
        self._steps.append(fence)

    def add_copies(self, step: int, copies: Pairs, arriving: Iterable[int] = ()) -> None:
        """Fence both ends of copies on the device that `step` makes. The sequences in `arriving`
        begin with them."""
        device = tuple(block for pair in copies for block in pair)
        self.add(Fence(StepTicket(step), device, arriving=tuple(arriving)))

    # -- tickets that are over ----------------------------------------------

    def confirm(self, step: int) -> bool:
        """The device has run all steps up to `step`. Returns whether any fence was lifted."""
        lifted = False
        while self._steps and step_of(self._steps[0]) <= step:
            self._lift(self._steps.popleft())
            lifted = True
        return lifted

    def lift(self, ticket: TransferTicket) -> bool:
        """A transfer is done. Returns whether it had any fence."""
        fences = self._transfers.pop(ticket, [])
        for fence in fences:
            self._lift(fence)
        return bool(fences)

    def hand_back(self, step: int, before: int | None) -> None:
        """`step` turned out empty and will not run. Its fences join those of step `before`, the
        latest in flight, or are lifted at once if no step is in flight."""
        own: list[Fence] = []
        while self._steps and step_of(self._steps[-1]) == step:
            own.append(self._steps.pop())
        for fence in reversed(own):
            if before is None:
                self._lift(fence)
            else:
                self._steps.append(replace(fence, ticket=StepTicket(before)))

    def retract(self) -> list[int]:
        """All steps in flight failed. Returns the serials that they were to store on the host."""
        fences = list(reversed(self._steps))
        self._steps.clear()
        return self._give_up(fences)

    def retract_transfer(self, ticket: TransferTicket) -> list[int]:
        """A transfer failed. Returns the serials that it was to store on the host."""
        return self._give_up(reversed(self._transfers.pop(ticket, [])))

    def _give_up(self, fences: Iterable[Fence]) -> list[int]:
        """Lift fences, latest first, whose copies never came about."""
        lost: list[int] = []
        for fence in fences:
            for block, key in reversed(fence.keys):
                self._host.unseal(block, key)
            self._lift(fence)
            lost += fence.stored
        return lost

    def _lift(self, fence: Fence) -> None:
        """Drop the blocks deepest first, so that the beginning of a prefix is reused last."""
        self._device.drop(reversed(fence.device))
        self._host.drop(reversed(fence.host))

    # -- what is under way --------------------------------------------------

    @property
    def arriving(self) -> set[int]:
        """Serials of residents whose blocks are complete only after the steps in flight."""
        return {serial for fence in self._steps for serial in fence.arriving}

    @property
    def coming(self) -> int:
        """Device blocks that are free as soon as the steps in flight have run. Blocks of a
        transfer do not count: it may last for many steps."""
        fenced = Counter(block for fence in self._steps for block in fence.device)
        holders = self._device.holders
        return sum(1 for block, count in fenced.items() if holders(block) == count)

    @property
    def provisional(self) -> set[int]:
        """Host blocks whose content is still on its way."""
        return {block for fence in self for block, _ in fence.keys}

    def is_storing(self, serial: int) -> bool:
        """Is content of this sequence still on its way to the host?"""
        return any(serial in fence.stored for fence in self)

    def device_blocks(self) -> list[int]:
        """Fenced device blocks, each once for every fence that holds it."""
        return [block for fence in self for block in fence.device]

    def host_blocks(self) -> list[int]:
        """Fenced host blocks, each once for every fence that holds it."""
        return [block for fence in self for block in fence.host]


def step_of(fence: Fence) -> int:
    assert isinstance(fence.ticket, StepTicket)
    return fence.ticket.step
