"""A slot for every sequence of a request."""

from paceline.sched.admission.gates import VacantSlots
from paceline.sched.admission.step_room import Shut
from tests.sched.admission.support import Newcomer, room
from tests.sched.support import DISCIPLINES, ask, gate, small, step


def test_a_request_needs_a_slot_for_each_of_its_sequences() -> None:
    gate = VacantSlots()
    assert gate.shut(Newcomer(size=3), room(vacant=3)) is None
    assert gate.shut(Newcomer(size=3), room(vacant=1)) == Shut("seqs", 2, lasting=True)


@DISCIPLINES
def test_residents_are_counted_once_against_every_limit(discipline: str) -> None:
    """Edge case 66: A family of three and two others take five slots of five and five tokens of
    five."""
    scheduler = small(
        max_num_seqs=5, max_num_batched_tokens=5, discipline=discipline, num_blocks=32
    )
    scheduler.submit(ask("a", 2, max_tokens=9, n=3), 0.0)
    for name in "bc":
        scheduler.submit(ask(name, 2, max_tokens=9), 0.0)
    for _ in range(3):
        step(scheduler)
    assert step(scheduler)["tokens"] == {"0_a": 1, "1_a": 1, "2_a": 1, "b": 1, "c": 1}
    assert scheduler.state.table.vacant == 0


def test_a_parked_request_holds_no_slot() -> None:
    """Edge case 71: However many wait for something else, the slots are for those who run."""
    scheduler = small(max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 3), 0.0, parked="grammar")
    scheduler.submit(ask("d", 3), 0.0)
    assert step(scheduler)["new"] == ["d"]


def test_a_family_waits_until_there_are_slots_for_all() -> None:
    scheduler = small(max_num_seqs=3)
    scheduler.submit(ask("b", 3, max_tokens=3), 0.0)
    scheduler.submit(ask("a", 3, max_tokens=2, n=3), 0.0)
    for _ in range(3):
        assert step(scheduler)["tokens"].keys() == {"b"}
        assert gate(scheduler) == ("seqs", "a", 1)
    assert step(scheduler)["new"] == ["0_a"]


def test_a_family_counts_all_its_sequences_also_before_it_forks() -> None:
    scheduler = small(max_num_seqs=3, max_num_batched_tokens=4)
    scheduler.submit(ask("a", 9, n=3), 0.0)
    scheduler.submit(ask("b", 3), 0.0)
    for _ in range(2):
        step(scheduler)
        assert scheduler.state.table.vacant == 0
    assert gate(scheduler) == ("seqs", "b", 1)
