"""Fences hold blocks until their step or transfer is over, and no longer."""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from paceline.kv.fence import Fence, Fences, StepTicket, TransferTicket
from paceline.kv.pool import BlockPool

BLOCKS = 8
LOAD, STORE = TransferTicket(1), TransferTicket(2)


@dataclass(slots=True)
class Memory:
    """A device and a host of eight blocks each, all held by a sequence that can let them go."""

    device: BlockPool = field(default_factory=lambda: BlockPool(BLOCKS))
    host: BlockPool = field(default_factory=lambda: BlockPool(BLOCKS))
    fences: Fences = field(init=False)

    def __post_init__(self) -> None:
        self.fences = Fences(self.device, self.host)
        for pool in (self.device, self.host):
            pool.take(BLOCKS)

    def leave(self) -> None:
        """The sequence lets all blocks go."""
        for pool in (self.device, self.host):
            pool.drop(range(BLOCKS))

    @property
    def free(self) -> tuple[int, int]:
        return self.device.free, self.host.free


# -- steps ------------------------------------------------------------------


def test_a_fence_holds_its_blocks_until_its_step_has_run() -> None:
    memory = Memory()
    memory.fences.add(Fence(StepTicket(4), device=(1, 2), host=(3,)))
    memory.leave()
    assert memory.free == (6, 7)
    assert not memory.fences.confirm(3)
    assert memory.free == (6, 7)
    assert memory.fences.confirm(4)
    assert memory.free == (8, 8)
    assert not memory.fences.confirm(4)


def test_a_block_in_two_fences_is_held_by_both() -> None:
    memory = Memory()
    for step in (4, 5):
        memory.fences.add(Fence(StepTicket(step), device=(1,)))
    memory.leave()
    memory.fences.confirm(4)
    assert memory.device.holders(1) == 1
    memory.fences.confirm(5)
    assert memory.device.holders(1) == 0


def test_a_later_step_lifts_the_fences_of_earlier_ones_too() -> None:
    memory = Memory()
    for step in (3, 4):
        memory.fences.add(Fence(StepTicket(step), device=(step,)))
    memory.leave()
    assert memory.fences.confirm(5)
    assert memory.free == (8, 8)


def test_fences_of_steps_are_raised_in_the_order_of_steps() -> None:
    fences = Memory().fences
    fences.add(Fence(StepTicket(4)))
    with pytest.raises(AssertionError, match="in order"):
        fences.add(Fence(StepTicket(3)))


def test_both_ends_of_a_copy_on_the_device_are_fenced() -> None:
    memory = Memory()
    memory.fences.add_copies(4, ((2, 3),), [11])
    assert memory.fences.arriving == {11}
    memory.leave()
    assert (memory.free, memory.fences.coming) == ((6, 8), 2)
    memory.fences.confirm(4)
    assert (memory.free, memory.fences.coming, memory.fences.arriving) == ((8, 8), 0, set())


def test_a_block_that_a_sequence_holds_is_not_coming() -> None:
    memory = Memory()
    memory.fences.add_copies(4, ((2, 3),))
    memory.device.drop([3])
    assert memory.fences.coming == 1
    memory.fences.add_copies(5, ((3, 2),))
    assert memory.fences.coming == 1


def test_a_fence_without_blocks_only_says_which_sequences_arrive() -> None:
    memory = Memory()
    memory.fences.add_copies(4, (), [11, 12])
    assert (memory.fences.arriving, memory.fences.coming) == ({11, 12}, 0)
    assert memory.fences.confirm(4)
    assert memory.fences.arriving == set()


@pytest.mark.parametrize("ticket", [StepTicket(4), LOAD])
def test_content_is_being_stored_until_its_ticket_is_over(
    ticket: StepTicket | TransferTicket,
) -> None:
    fences = Memory().fences
    fences.add(Fence(ticket, stored=(11,)))
    assert (fences.is_storing(11), fences.is_storing(12)) == (True, False)
    fences.confirm(4)
    fences.lift(LOAD)
    assert not fences.is_storing(11)


def test_the_deepest_block_of_a_fence_is_reused_first() -> None:
    memory = Memory()
    memory.device.seal([0, 1, 2], [b"a", b"b", b"c"])
    memory.fences.add(Fence(StepTicket(4), device=(0, 1, 2)))
    memory.leave()
    memory.device.take(5)
    memory.fences.confirm(4)
    assert memory.device.take(3) == [2, 1, 0]


# -- steps that turn out empty ----------------------------------------------


def test_an_empty_step_lifts_its_fences_at_once_if_none_is_in_flight() -> None:
    memory = Memory()
    memory.fences.add(Fence(StepTicket(5), device=(1, 2), stored=(11,)))
    memory.leave()
    memory.fences.hand_back(5, before=None)
    assert (memory.free, memory.fences.is_storing(11)) == ((8, 8), False)


def test_the_fences_of_an_empty_step_are_lifted_with_the_latest_step_in_flight() -> None:
    memory = Memory()
    memory.fences.add_copies(3, ((0, 0),))
    for block in (1, 2):
        memory.fences.add_copies(5, ((block, block),), [11])
    memory.leave()
    memory.fences.hand_back(5, before=4)
    memory.fences.confirm(3)
    assert (memory.free, memory.fences.coming, memory.fences.arriving) == ((6, 8), 2, {11})
    memory.fences.confirm(4)
    assert (memory.free, memory.fences.arriving) == ((8, 8), set())


@pytest.mark.parametrize("before", [None, 4])
def test_fences_of_an_empty_step_are_lifted_in_the_order_they_were_raised(
    before: int | None,
) -> None:
    memory = Memory()
    memory.device.seal([0, 1, 2, 3], [b"a", b"b", b"c", b"d"])
    for first in (0, 2):
        memory.fences.add(Fence(StepTicket(5), device=(first, first + 1)))
    memory.leave()
    memory.device.take(4)
    memory.fences.hand_back(5, before)
    memory.fences.confirm(4)
    assert memory.device.take(4) == [1, 0, 3, 2]


def test_only_the_fences_of_the_empty_step_are_handed_back() -> None:
    memory = Memory()
    for step, block in ((4, 0), (5, 1), (5, 2)):
        memory.fences.add_copies(step, ((block, block),))
    memory.fences.add(Fence(LOAD, device=(3,)))
    memory.leave()
    for _ in range(2):
        memory.fences.hand_back(5, before=None)
        assert (memory.free, memory.fences.coming) == ((6, 8), 1)


# -- steps that fail --------------------------------------------------------


def test_failed_steps_lift_all_fences_and_name_what_they_were_to_store() -> None:
    memory = Memory()
    memory.fences.add(Fence(StepTicket(4), device=(1,), host=(1,), stored=(11, 12)))
    memory.fences.add(Fence(StepTicket(5), device=(2,), stored=(13,), arriving=(14,)))
    memory.leave()
    assert memory.fences.retract() == [13, 11, 12]
    assert (memory.free, memory.fences.arriving, list(memory.fences)) == ((8, 8), set(), [])


def test_keys_of_copies_that_failed_are_forgotten() -> None:
    memory = Memory()
    memory.host.seal([1, 2, 3], [b"a", b"b", b"c"])
    memory.fences.add(Fence(StepTicket(4), host=(1, 2), keys=((2, b"b"),)))
    memory.fences.retract()
    assert [memory.host.has(key) for key in (b"a", b"b", b"c")] == [True, False, True]


def test_keys_of_copies_that_were_made_stay() -> None:
    memory = Memory()
    memory.host.seal([1], [b"a"])
    memory.fences.add(Fence(StepTicket(4), host=(1,), keys=((1, b"a"),)))
    memory.leave()
    memory.fences.confirm(4)
    memory.fences.retract()
    assert memory.host.find([b"a"]) == [1]


# -- transfers --------------------------------------------------------------


def test_transfers_are_over_in_any_order() -> None:
    memory = Memory()
    memory.fences.add(Fence(LOAD, device=(1,)))
    memory.fences.add(Fence(STORE, device=(2,), host=(2,)))
    memory.leave()
    assert memory.fences.lift(STORE)
    assert memory.free == (7, 8)
    assert not memory.fences.lift(STORE)
    assert memory.fences.lift(LOAD)
    assert memory.free == (8, 8)


def test_all_fences_of_a_transfer_are_lifted_together() -> None:
    memory = Memory()
    for block in (1, 2):
        memory.fences.add(Fence(LOAD, device=(block,)))
    memory.leave()
    memory.fences.lift(LOAD)
    assert memory.free == (8, 8)


def test_a_transfer_outlasts_steps_whether_they_run_or_fail() -> None:
    memory = Memory()
    memory.fences.add(Fence(LOAD, device=(1,), stored=(11,)))
    memory.fences.add(Fence(StepTicket(4), device=(2,)))
    memory.leave()
    memory.fences.confirm(4)
    assert memory.fences.retract() == []
    assert memory.free == (7, 8)


def test_blocks_of_a_transfer_are_not_coming() -> None:
    memory = Memory()
    memory.fences.add(Fence(LOAD, device=(1, 2)))
    memory.fences.add(Fence(StepTicket(4), device=(2, 3)))
    memory.leave()
    assert memory.fences.coming == 1


def test_a_failed_transfer_forgets_its_keys_and_names_what_it_was_to_store() -> None:
    memory = Memory()
    memory.host.seal([1, 2], [b"a", b"b"])
    memory.fences.add(Fence(LOAD, host=(1,), stored=(11,), keys=((1, b"a"),)))
    memory.fences.add(Fence(STORE, host=(2,), stored=(12,), keys=((2, b"b"),)))
    memory.leave()
    assert memory.fences.retract_transfer(LOAD) == [11]
    assert (memory.free[1], memory.host.has(b"a"), memory.host.has(b"b")) == (7, False, True)
    assert memory.fences.retract_transfer(LOAD) == []


# -- any order of calls -----------------------------------------------------


class Naive:
    """The same rules over one plain list, newest last."""

    def __init__(self) -> None:
        self.fences: list[Fence] = []
        self.lost_keys: list[bytes] = []

    def over(self, fences: list[Fence], failed: bool = False) -> list[int]:
        """Remove fences; the serials that a failure loses, newest fence first."""
        for fence in fences:
            self.fences.remove(fence)
            if failed:
                self.lost_keys += [key for _, key in fence.keys]
        return [serial for fence in reversed(fences) for serial in fence.stored if failed]

    def steps(self, up_to: int | None = None) -> list[Fence]:
        return [
            fence
            for fence in self.fences
            if isinstance(fence.ticket, StepTicket)
            and (up_to is None or fence.ticket.step <= up_to)
        ]

    def of(self, ticket: StepTicket | TransferTicket) -> list[Fence]:
        return [fence for fence in self.fences if fence.ticket == ticket]


class Course:
    """Random fences of both kinds, raised and lifted beside a naive model of them.

    A sequence holds about half of the blocks, and changes its mind all the time.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.memory, self.naive = Memory(), Naive()
        self.held = [set(range(BLOCKS)), set(range(BLOCKS))]  # by the sequence
        self.step, self.flight = 0, list[int]()
        self.serials, self.transfers = 0, 0

    def turn(self) -> None:
        moves = [self.add, self.add, self.flip, self.plan, self.confirm, self.hand_back]
        moves += [self.retract, self.lift, self.lose_transfer]
        self.random.choice(moves)()
        self.compare()

    def holders(self, place: int) -> Counter[int]:
        fences = self.naive.fences
        held = Counter(self.held[place])
        held.update(block for one in fences for block in (one.host if place else one.device))
        return held

    def flip(self) -> None:
        """The sequence lets a block go, or takes a free one."""
        for place, pool in enumerate((self.memory.device, self.memory.host)):
            if self.held[place] and self.random.random() < 0.5:
                block = self.random.choice(sorted(self.held[place]))
                self.held[place].remove(block)
                pool.drop([block])
            elif pool.free:
                (block,) = pool.take(1)
                self.held[place].add(block)

    def add(self) -> None:
        device, host = (self.some(sorted(self.holders(place))) for place in range(2))
        self.transfers += self.random.random() < 0.5
        transfer = TransferTicket(self.random.randint(1, 1 + self.transfers))
        self.serials += 4
        stored, arriving = (self.serials, self.serials + 1), (self.serials + 2,)
        keys = self.keys()
        host += tuple(block for block, _ in keys)
        fence = Fence(StepTicket(self.step), device, host, arriving, stored, keys)
        fence = self.random.choice([fence, replace(fence, ticket=transfer)])
        self.memory.fences.add(fence)
        self.naive.fences.append(fence)

    def some(self, blocks: list[int]) -> tuple[int, ...]:
        return tuple(self.random.sample(blocks, self.random.randint(0, min(3, len(blocks)))))

    def keys(self) -> tuple[tuple[int, bytes], ...]:
        """A new key for a host block that has just been taken, as a copy to the host has it."""
        if not self.memory.host.free or self.random.random() < 0.5:
            return ()
        (block,) = self.memory.host.take(1)
        self.held[1].add(block)
        key = self.serials.to_bytes(8, "big")
        self.memory.host.seal([block], [key])
        return ((block, key),)

    def plan(self) -> None:
        if self.random.random() < 0.5 or self.naive.of(StepTicket(self.step)):
            self.flight.append(self.step)
        self.step += 1

    def confirm(self) -> None:
        if self.flight:
            step = self.flight.pop(0)
            over = self.naive.steps(step)
            assert self.memory.fences.confirm(step) == bool(over)
            self.naive.over(over)

    def hand_back(self) -> None:
        before = self.flight[-1] if self.flight else None
        own = self.naive.of(StepTicket(self.step))
        self.memory.fences.hand_back(self.step, before)
        self.naive.over(own)
        if before is not None:
            self.naive.fences += [replace(one, ticket=StepTicket(before)) for one in own]
        self.step += 1

    def retract(self) -> None:
        lost = self.naive.over(self.naive.steps(), failed=True)
        assert self.memory.fences.retract() == lost
        self.flight.clear()

    def lift(self) -> None:
        ticket = TransferTicket(self.random.randint(1, 1 + self.transfers))
        over = self.naive.of(ticket)
        assert self.memory.fences.lift(ticket) == bool(over)
        self.naive.over(over)

    def lose_transfer(self) -> None:
        ticket = TransferTicket(self.random.randint(1, 1 + self.transfers))
        lost = self.naive.over(self.naive.of(ticket), failed=True)
        assert self.memory.fences.retract_transfer(ticket) == lost

    def compare(self) -> None:
        fences, steps = self.memory.fences, self.naive.steps()
        device, host = self.holders(0), self.holders(1)
        self.memory.device.check(device)
        self.memory.host.check(host)
        assert fences.arriving == {serial for fence in steps for serial in fence.arriving}
        fenced = Counter(block for fence in steps for block in fence.device)
        assert fences.coming == sum(device[block] == count for block, count in fenced.items())
        stored = {serial for fence in self.naive.fences for serial in fence.stored}
        some = {*self.random.choices(range(self.serials + 4), k=8), *sorted(stored)[-8:]}
        assert {one for one in some if fences.is_storing(one)} == stored & some
        assert all(
            self.memory.host.has(key) for fence in self.naive.fences for _, key in fence.keys
        )
        assert not any(map(self.memory.host.has, self.naive.lost_keys))


@pytest.mark.parametrize("seed", range(30))
def test_fences_agree_with_a_naive_model(seed: int) -> None:
    course = Course(seed)
    for _ in range(150):
        course.turn()
