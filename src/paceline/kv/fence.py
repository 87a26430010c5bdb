"""Fences: blocks that must not be reused before a step or a transfer ends."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paceline.core.plan import Pairs
from paceline.kv.pool import BlockPool


@dataclass(frozen=True, slots=True)
class StepTicket:
    """Ends when the scheduler commits the step. Steps end in order."""

    step: int


@dataclass(frozen=True, slots=True)
class TransferTicket:
    """Ends when the transfer is reported as done. Transfers end in any order."""

    id: int


Ticket = StepTicket | TransferTicket


@dataclass(frozen=True, slots=True)
class Fence:
    """The blocks that a step or a transfer copies, and what is complete when it ends."""

    ticket: Ticket
    device: tuple[int, ...] = ()
    host: tuple[int, ...] = ()
    arriving: tuple[int, ...] = ()  # serials whose device blocks are complete at its end
    stored: tuple[int, ...] = ()  # serials whose content is on the host at its end
    keys: tuple[tuple[int, bytes], ...] = ()  # provisional: host blocks and the keys they will have
    brief: bool = False  # it ends about as soon as a step does, although it is a transfer


class Fences:
    """A fence is one more holder of each of its blocks, until its ticket ends.

        plan 7      swap_out (d3, h0)     d3: held by the fence alone    h0: sequence, fence
        commit 7                          d3: free                       h0: sequence

    Fences of steps stand in the order of steps and are lifted in that order. Fences of transfers
    are lifted one ticket at a time. A failed step says nothing about transfers.
    """

    def __init__(self, device: BlockPool, host: BlockPool) -> None:
        self._device, self._host = device, host
        self._steps: deque[Fence] = deque()  # with StepTickets, in ascending order
        self._transfers: dict[TransferTicket, list[Fence]] = {}

    def __iter__(self) -> Iterator[Fence]:
        yield from self._steps
        for fences in self._transfers.values():
            yield from fences

    def add(self, fence: Fence) -> None:
        """Raise a fence: hold its blocks until its ticket ends."""
        self._device.hold(fence.device)
        self._host.hold(fence.host)
        if isinstance(fence.ticket, TransferTicket):
            self._transfers.setdefault(fence.ticket, []).append(fence)
            return
        latest = step_of(self._steps[-1]) if self._steps else fence.ticket.step
        step = fence.ticket.step
        assert latest <= step, f"steps run in order: step {latest} has a fence before step {step}"
        self._steps.append(fence)

    def add_copies(self, step: int, copies: Pairs, arriving: Iterable[int] = ()) -> None:
        """Fence both ends of the device copies of `step`. The sequences in `arriving` use the
        copies."""
        device = tuple(block for pair in copies for block in pair)
        self.add(Fence(StepTicket(step), device, arriving=tuple(arriving)))

    # -- tickets that end ---------------------------------------------------

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
        """`step` is empty and will not run. Move its fences to step `before`, the latest in flight,
        or lift them if no step is in flight."""
        own: list[Fence] = []
        while self._steps and step_of(self._steps[-1]) == step:
            own.append(self._steps.pop())
        for fence in reversed(own):
            if before is None:
                self._lift(fence)
            else:
                self._steps.append(replace(fence, ticket=StepTicket(before)))

    def retract(self) -> list[int]:
        """All steps in flight failed. Returns the serials whose content did not reach the host."""
        fences = list(reversed(self._steps))
        self._steps.clear()
        return self._give_up(fences)

    def retract_transfer(self, ticket: TransferTicket) -> list[int]:
        """A transfer failed. Returns the serials whose content did not reach the host."""
        return self._give_up(reversed(self._transfers.pop(ticket, [])))

    def _give_up(self, fences: Iterable[Fence]) -> list[int]:
        """Lift fences, latest first, whose copies were not made."""
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

    # -- copies in flight ---------------------------------------------------

    @property
    def arriving(self) -> set[int]:
        """Serials of residents whose blocks are complete when the steps in flight have run."""
        return {serial for fence in self._steps for serial in fence.arriving}

    @property
    def coming(self) -> int:
        """Device blocks that become free when the steps in flight have run and brief transfers have
        ended. Other transfers do not count: they may last for many steps."""
        transfers = (fence for fences in self._transfers.values() for fence in fences)
        soon = (*self._steps, *(fence for fence in transfers if fence.brief))
        fenced = Counter(block for fence in soon for block in fence.device)
        holders = self._device.holders
        return sum(1 for block, count in fenced.items() if holders(block) == count)

    @property
    def provisional(self) -> set[int]:
        """Host blocks whose content has not been confirmed."""
        return {block for fence in self for block, _ in fence.keys}

    def is_storing(self, serial: int) -> bool:
        """Whether content of this sequence is still being copied to the host."""
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
