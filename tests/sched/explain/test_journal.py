"""What the journal keeps of the past, and how much."""

import re
from pathlib import Path

import numpy as np

from paceline import sched
from paceline.core.events import Happened, Moment
from paceline.core.request import Sequence
from paceline.core.settings.config import JournalConfig
from paceline.sched.admission.limits import Limit
from paceline.sched.explain.journal import Gate, Journal, Passage, note
from paceline.sched.slots import Idle
from tests.sched.support import answer, ask, commit, finish_all, sequence, small, step


def journal(requests: int = 8, spells: int = 8) -> Journal:
    return Journal(JournalConfig(journal_requests=requests, journal_spells=spells))


def gate(reason: str = "blocks", serial: int = 0, short: int = 1) -> Gate:
    return Gate(reason, serial, f"r{serial}", short)


def ended(name: str, serial: int = 0) -> Sequence:
    request = ask(name, 3)
    return Sequence(request, serial, 7, 0.0, request.prompt)


def spells(kept: Journal) -> list[tuple[str, int, float, float]]:
    return [(s.gate.reason, s.gate.serial, s.since, s.until) for s in kept.spells]


def test_every_reason_is_explained_where_gates_are() -> None:
    source = Path(sched.__path__[0])
    files = [*source.glob("admission/*.py"), *source.glob("disciplines/*.py")]
    said = re.compile(r'(?:Shut|closed)\((?:\w+, )?"(\w+)"')
    reasons = {one for file in files for one in said.findall(file.read_text())}
    assert {"seqs", "blocks", "swapping", "room", "preempted", "paused", "decodes"} <= reasons
    explained = Gate.__doc__ or ""
    assert [one for one in (*reasons, Limit.reason) if f"\n    {one} " not in explained] == []


def test_nothing_blocked_leaves_no_trace() -> None:
    kept = journal()
    kept.blocked(None, 1.0)
    kept.left(ended("a"), 2.0)
    assert spells(kept) == []
    assert kept.open_spell is None


def test_the_same_gate_in_step_after_step_is_one_spell() -> None:
    kept = journal()
    for now in (1.0, 2.0, 4.0):
        kept.blocked(gate(short=int(now)), now)
    assert spells(kept) == [("blocks", 0, 1.0, 4.0)]
    assert kept.spells[0].gate.short == 1


def test_another_reason_or_another_head_begins_a_new_spell_where_the_last_ended() -> None:
    kept = journal()
    kept.blocked(gate("blocks", 0), 1.0)
    kept.blocked(gate("budget", 0), 2.0)
    kept.blocked(gate("budget", 1), 3.0)
    kept.blocked(None, 5.0)
    assert spells(kept) == [
        ("blocks", 0, 1.0, 2.0),
        ("budget", 0, 2.0, 3.0),
        ("budget", 1, 3.0, 5.0),
    ]


def test_an_open_gate_ends_the_spell_and_the_same_gate_later_is_another() -> None:
    kept = journal()
    kept.blocked(gate(), 1.0)
    assert kept.open_spell is kept.spells[0]
    kept.blocked(None, 2.0)
    assert kept.open_spell is None
    kept.blocked(gate(), 7.0)
    assert spells(kept) == [("blocks", 0, 1.0, 2.0), ("blocks", 0, 7.0, 7.0)]


def test_a_spell_ends_when_the_one_at_the_gate_leaves() -> None:
    kept = journal()
    kept.blocked(gate(serial=1), 1.0)
    kept.left(ended("a", serial=2), 2.0)
    assert kept.open_spell is not None
    kept.left(ended("b", serial=1), 3.5)
    assert kept.open_spell is None
    kept.blocked(None, 9.0)
    assert spells(kept) == [("blocks", 1, 1.0, 3.5)]


def test_spells_and_passages_are_bounded() -> None:
    kept = journal(spells=3)
    for number in range(10):
        kept.blocked(gate(serial=number), float(number))
        kept.passed(ended("a", number), 5, float(number))
    assert [one[1] for one in spells(kept)] == [7, 8, 9]
    assert list(kept.passages) == [Passage(float(n), n, 5) for n in (7, 8, 9)]


def test_the_oldest_of_too_many_ended_requests_is_forgotten() -> None:
    kept = journal(requests=2)
    first, second, third = ended("a"), ended("b"), ended("c")
    for one in (first, second, third):
        kept.ended(one)
    assert [kept.recall(name) for name in "abc"] == [None, second, third]


def test_an_id_that_ends_again_is_remembered_by_its_latest_end() -> None:
    kept = journal(requests=2)
    again = ended("a", 2)
    for one in (ended("a"), ended("b"), again, ended("c")):
        kept.ended(one)
    assert kept.recall("a") is again
    assert kept.recall("b") is None


def test_a_note_is_a_turn_in_its_life() -> None:
    one = ended("a")
    note(one, Happened.PREEMPTED, 2.0, 7, 5, "'b'")
    assert one.life == [Moment(Happened.PREEMPTED, 2.0, 7, 5, "'b'")]


# -- what a scheduler writes -------------------------------------------------


def life(one: Sequence) -> list[tuple[str, float, int, int]]:
    return [(m.happened.value, m.time, m.step, m.amount) for m in one.life]


def test_a_whole_life() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    one = sequence(scheduler, "a")
    step(scheduler, 1.0)
    plan = scheduler.plan(2.0)
    scheduler.retry(plan, 3.0)
    step(scheduler, 4.0)
    commit(scheduler, scheduler.plan(5.0), 6.0)
    assert life(one) == [
        ("submitted", 0.0, 0, 0),
        ("admitted", 1.0, 1, 0),
        ("first token", 1.0, 1, 0),
        ("preempted", 3.0, 2, 6),
        ("resumed", 4.0, 3, 4),
        ("finished", 6.0, 4, 8),
    ]


def test_a_first_token_names_the_step_that_sampled_it_however_late_it_came() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=6), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(3)]
    commit(scheduler, plans[0], 1.0)
    assert ("first token", 1.0, 1, 0) in life(sequence(scheduler, "a"))


def test_parking_is_a_turn_too() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0, parked="grammar")
    scheduler.wake("a", 2.0)
    scheduler.park("a", "remote_kv", 3.0)
    causes = [(m.happened.value, m.time, m.cause) for m in sequence(scheduler, "a").life]
    assert causes == [
        ("submitted", 0.0, ""),
        ("parked", 0.0, "grammar"),
        ("woken", 2.0, "grammar"),
        ("parked", 3.0, "remote_kv"),
    ]


def test_a_passage_counts_only_what_has_to_be_computed() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9), max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", range(10), max_tokens=1), 1.0)
    finish_all(scheduler, 1.0)
    assert [(p.serial, p.tokens) for p in scheduler.state.journal.passages] == [(0, 9), (1, 2)]


def test_the_journal_does_not_grow_with_those_who_wait() -> None:
    scheduler = small(max_num_seqs=1)
    for number in range(300):
        scheduler.submit(ask(f"r{number}", [number + 1], max_tokens=50), 0.0)
    for now in range(20):
        plan = scheduler.plan(float(now))
        scheduler.commit(plan, answer(plan), float(now))
    assert len(scheduler.state.journal.spells) == 1
    assert scheduler.state.journal.spells[0].until == 19.0


# -- those who are passed over -------------------------------------------------


def passed(serial: int, reason: str = "a permit") -> Gate:
    return Gate(reason, serial, f"r{serial}", passed_over=True)


def test_each_that_is_passed_over_has_a_spell_of_its_own() -> None:
    kept = journal()
    kept.blocked(gate("seqs", 3), 1.0, (passed(1), passed(2)))
    kept.blocked(gate("seqs", 3), 2.0, (passed(2),))
    kept.blocked(gate("seqs", 3), 4.0)
    assert sorted(spells(kept)) == [
        ("a permit", 1, 1.0, 2.0),
        ("a permit", 2, 1.0, 4.0),
        ("seqs", 3, 1.0, 4.0),
    ]


def test_admission_did_not_stop_where_all_were_passed_over() -> None:
    kept = journal()
    kept.blocked(passed(1), 1.0, (passed(1),))
    assert kept.open_spell is None
    spell = kept.passed_over(ended("r1", 1))
    assert spell is not None
    assert spell.gate == passed(1)


def test_another_reason_to_be_passed_over_is_another_spell() -> None:
    kept = journal()
    kept.blocked(None, 1.0, (passed(1, "a permit"),))
    kept.blocked(None, 2.0, (passed(1, "an adapter"),))
    kept.blocked(None, 3.0)
    assert spells(kept) == [("a permit", 1, 1.0, 2.0), ("an adapter", 1, 2.0, 3.0)]


def test_one_that_leaves_is_passed_over_no_longer() -> None:
    kept, one = journal(), ended("r1", 1)
    kept.blocked(gate("seqs", 3), 1.0, (passed(1),))
    kept.left(one, 3.0)
    assert kept.passed_over(one) is None
    assert spells(kept)[0] == ("a permit", 1, 1.0, 3.0)
    assert kept.open_spell is not None


def test_a_request_is_admitted_once_and_resumed_after_that() -> None:
    """Edge case 60: So that the time in the queue is that of the first admission."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    for now in range(3):
        step(scheduler, float(now))
        scheduler.reset_prefix_cache(reset_running_requests=True, now=float(now))
    turns = [(m.happened, m.time) for m in sequence(scheduler, "a").life]
    assert [time for turn, time in turns if turn is Happened.ADMITTED] == [0.0]
    assert [time for turn, time in turns if turn is Happened.RESUMED] == [1.0, 2.0]
    assert [time for turn, time in turns if turn is Happened.FIRST_TOKEN] == [0.0]


def test_a_slot_forgets_how_often_its_last_sequence_got_nothing() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 3, max_tokens=2), 0.0)
    step(scheduler)
    slot = np.array([sequence(scheduler, "a").slot])
    scheduler.state.table.idle(slot, step=1, cause=np.array([Idle.BUDGET]))
    assert "1 step without a position" in scheduler.explain("a")
    finish_all(scheduler)
    scheduler.submit(ask("b", 3), 0.0)
    step(scheduler)
    assert "without a position" not in scheduler.explain("b")
