"""Beam searches in a scheduler: their candidates, choices and blocks."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline import Plan, Request, Scheduler, StepError, StepResult
from paceline.core.plan import Candidates
from paceline.core.request import Finish
from paceline.testing.reference import beam_search, reference
from tests.sched.groups.support import LENGTH, likely, run
from tests.sched.support import (
    DEPTHS,
    VOCAB,
    Pipeline,
    answer,
    ask,
    preempt,
    sampling,
    small,
    state,
    step,
)
from tests.seeds import seeds


def beams(name: str = "a", prompt: int = 6, **fields: Any) -> Request:
    return ask(name, prompt, **{"max_tokens": 6, "n": 2, "beam_width": 3} | fields)


def ranked(plan: Plan, **told: list[tuple[int, float]]) -> StepResult:
    """Candidates for each row that samples; unless told, four that go on."""
    plain = [(token, -float(token)) for token in range(1, 7)]
    rows = {label: told.get(f"beam_{label[0]}", plain) for label in sampling(plan)}
    return StepResult.of(plan, {label: [9] for label in rows}, candidates=rows)


def searching(**fields: Any) -> Scheduler:
    """Three beams that have computed the prompt."""
    scheduler = small()
    scheduler.submit(beams(**fields), 0.0)
    step(scheduler)
    return scheduler


def outputs_of(scheduler: Scheduler, name: str = "a") -> list[list[int]]:
    """What each beam has generated, by index."""
    at = scheduler.state
    family = at.sequence_groups[name]
    prompt = len(family.request.prompt)
    known = at.table.known
    return [at.table.tokens[one.slot, prompt : known[one.slot]].tolist() for one in family.members]


def test_all_beams_come_from_the_first_at_first() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    assert plan.rows.labels == ["0_a", "1_a", "2_a"]
    outputs = scheduler.commit(plan, ranked(plan), 0.0)
    scheduler.check()
    assert (outputs.to_dict(), outputs_of(scheduler)) == ({}, [[1], [2], [3]])
    assert scheduler.plan(0.0).chosen == tuple(
        (one.slot, (token,))
        for one, token in zip(scheduler.state.sequence_groups["a"].members, (1, 2, 3), strict=True)
    )


def test_a_beam_that_dies_goes_on_from_another() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, ranked(plan), 0.0)
    plan = scheduler.plan(0.0)
    best = [(7, -0.1), (8, -0.2), (4, -0.3), (5, -9.0), (6, -9.0), (3, -9.0)]
    scheduler.commit(plan, ranked(plan, beam_1=best), 0.0)
    scheduler.check()
    assert outputs_of(scheduler) == [[1, 1], [2, 7], [2, 8]]
    slots = [one.slot for one in scheduler.state.sequence_groups["a"].members]
    plan = scheduler.plan(0.0)
    assert plan.released == (slots[2],)
    ((source, target),) = plan.copies
    assert [scheduler.state.cache.tables.blocks(slot)[1] for slot in slots][1:] == [
        source,
        target,
    ]
    (again,) = plan.admitted
    assert (again.request.id, again.computed, again.resumed) == ("2_a", 7, True)
    assert again.tokens.tolist()[6:] == [2]
    assert dict(plan.chosen) == dict(zip(slots, ((1,), (7,), (8,)), strict=True))


def test_beams_share_all_but_the_block_being_written() -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(beams(prompt=9, max_tokens=12, beam_width=4, eos_token_ids=()), 0.0)
    pipeline = Pipeline(scheduler, 1, vocab=20)
    most = 0
    while not scheduler.idle:
        plan = pipeline.launch()
        assert len(plan.copies) <= 3
        pipeline.land()
        most = max(most, len(plan.copies))
    assert most == 3
    assert scheduler.stats.copied_blocks >= 5
    assert scheduler.snapshot()["free_blocks"] == 64


@DEPTHS
def test_beams_run_in_lockstep_and_the_others_ahead(depth: int) -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(beams(prompt=5, max_tokens=9), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=20), 0.0)
    pipeline = Pipeline(scheduler, depth)
    for _ in range(depth):
        pipeline.launch()
    planned = [plan.to_dict()["tokens"] for plan in pipeline.plans]
    assert [tokens.get("b") for tokens in planned] == [5, 1, 1, 1][:depth]
    assert [tokens.get("0_a") for tokens in planned] == [4, 1, None, None][:depth]
    pipeline.run()
    assert pipeline.choices["a"] == [
        list(choice.tokens) for choice in beam_search(beams(prompt=5, max_tokens=9), VOCAB, LENGTH)
    ]


def test_beams_draft_nothing() -> None:
    scheduler = small(num_blocks=64, num_speculative_tokens=3, speculation="fixed")
    asked = beams(max_tokens=9)
    pipeline = run(scheduler, asked, ask("b", 5, max_tokens=9), depth=2)
    drafted = {label for plan in pipeline.plans for label in plan.to_dict()["drafts"]}
    assert drafted == {"b"}
    assert pipeline.choices["a"] == [list(one.tokens) for one in beam_search(asked, VOCAB, LENGTH)]


def test_the_end_of_a_search_tells_its_choices_once() -> None:
    scheduler = searching(early_stopping=True, eos_token_ids=(0,))
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, ranked(plan), 0.0)
    plan = scheduler.plan(0.0)
    stops = [(0, -0.1), (1, -0.5), (2, -9.0), (3, -9.0), (4, -9.0), (5, -9.0)]
    outputs = scheduler.commit(plan, ranked(plan, beam_0=stops, beam_1=stops, beam_2=stops), 0.0)
    assert outputs.finished == ()  # one end of three: others are better and go on
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, ranked(plan, beam_0=stops, beam_1=stops, beam_2=stops), 0.0)
    (end,) = outputs.finished
    scheduler.check()
    assert (end.request_id, end.child, end.finish) == ("a", -1, Finish.STOP)
    assert len(end.choices) == 2
    assert all(one.stop_token == 0 and one.tokens[-1] == 0 for one in end.choices)
    assert end.choices[0].score >= end.choices[1].score
    assert scheduler.idle
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.plan(0.0).finished == ("a",)


def test_a_result_without_candidates_is_refused_by_row() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    before = scheduler.snapshot()
    complaint = r"^step 2: '0_a' asked for candidates$"
    with pytest.raises(StepError, match=complaint):
        scheduler.commit(plan, answer(plan), 0.0)
    told = StepResult.of(
        plan, {label: [9] for label in sampling(plan)}, candidates={"1_a": [(5, -1)]}
    )
    with pytest.raises(StepError, match=complaint):
        scheduler.commit(plan, told, 0.0)
    assert scheduler.snapshot() == before
    scheduler.commit(plan, ranked(plan), 0.0)
    scheduler.check()
    assert outputs_of(scheduler) == [[1], [2], [3]]


@pytest.mark.parametrize(("ids", "logprob"), [((2, 6), (2, 6)), ((3, 6), (3, 5)), ((3, 0), (3, 0))])
def test_candidates_of_another_shape_are_none(
    ids: tuple[int, ...], logprob: tuple[int, ...]
) -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    found = Candidates(np.zeros(ids, np.int32), np.zeros(logprob, np.float32))
    with pytest.raises(StepError, match="'0_a' asked for candidates"):
        scheduler.commit(plan, replace(answer(plan), candidates=found), 0.0)
    scheduler.commit(plan, ranked(plan), 0.0)
    scheduler.check()


def test_log_probabilities_alone_are_not_candidates() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    with pytest.raises(StepError, match="asked for candidates"):
        scheduler.commit(plan, likely(plan, {}, {}), 0.0)


def test_an_abort_between_the_steps_of_a_search() -> None:
    for steps in range(5):
        scheduler = small()
        scheduler.submit(beams(), 0.0)
        pipeline = Pipeline(scheduler, 1)
        for _ in range(steps):
            pipeline.launch()
            pipeline.land()
        assert scheduler.abort("a", 0.0)
        scheduler.check()
        pipeline.run()
        assert scheduler.snapshot()["free_blocks"] == 16
        assert pipeline.choices == {}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_search_gives_way_when_only_some_of_its_beams_have_told_their_candidates(
    mode: str,
) -> None:
    """The prompt of another leaves room for one row in each step."""
    scheduler = small(
        max_num_seqs=4,
        max_num_batched_tokens=4,
        long_prefill_token_threshold=3,
        preemption_mode=mode,
        swap_space=8,
    )
    asked = beams(prompt=1, beam_width=2, max_tokens=5)
    scheduler.submit(ask("long", 30, max_tokens=2), 0.0)
    scheduler.submit(asked, 0.0)
    pipeline = Pipeline(scheduler, 1)
    for _ in range(3):
        pipeline.launch()
        pipeline.land()
    assert len(scheduler.state.sequence_groups["a"].reports) == 1
    preempt(scheduler, "a")
    scheduler.check()
    assert state(scheduler, "a")["state"] == ("SWAPPED" if mode == "swap" else "PREEMPTED")
    pipeline.run()
    assert pipeline.choices["a"] == [list(one.tokens) for one in beam_search(asked, VOCAB, LENGTH)]


SWAPPED = {"num_blocks": 14, "preemption_mode": "swap", "swap_space": 32}


SETTINGS: dict[str, dict[str, Any]] = {
    "calm": {"num_blocks": 64},
    "preempted": {"num_blocks": 14},
    "swapped": SWAPPED,
    "swapped without a cache": {**SWAPPED, "enable_prefix_caching": False},
}


def searches(seed: int, vocab: int) -> list[Request]:
    """Two beam searches and others beside them."""
    r = Random(seed)
    found: list[Request] = []
    for name in "ab":
        width = r.randint(2, 4)
        found.append(
            beams(
                name,
                r.randint(1, 9),
                n=r.randint(1, width),
                beam_width=width,
                max_tokens=r.randint(4, 10),
                length_penalty=r.choice([1.0, 0.0, -0.5, 2.0]),
                early_stopping=r.choice([True, False, "never"]),
                eos_token_ids=tuple(r.randrange(vocab) for _ in range(r.randint(0, 1))),
                stop_token_ids=tuple(r.randrange(vocab) for _ in range(r.randint(0, 2))),
                min_tokens=r.choice([0, 3]),
            )
        )
    others = ask("c", 6, max_tokens=20), ask("d", 5, max_tokens=12, n=2, seed=seed)
    return [others[0], found[0], others[1], found[1]]


def race(name: str, seed: int, vocab: int, depth: int) -> Pipeline:
    discipline = ("unified", "prefill_first")[seed % 2]
    scheduler = small(
        **SETTINGS[name], max_num_seqs=8, max_num_batched_tokens=9, discipline=discipline
    )
    return run(scheduler, *searches(seed, vocab), depth=depth, vocab=vocab)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("vocab", [2, 20])
@pytest.mark.parametrize("name", SETTINGS)
@DEPTHS
def test_beams_are_those_of_the_reference(seed: int, vocab: int, name: str, depth: int) -> None:
    pipeline = race(name, seed, vocab, depth)
    for one in searches(seed, vocab):
        if one.beam_width:
            found = beam_search(one, vocab, LENGTH)
            assert pipeline.choices[one.id] == [list(choice.tokens) for choice in found]
            assert pipeline.ends[one.id] == [found[0].finish.value]
            assert not pipeline.got[one.id]
        elif one.width == 1:
            assert pipeline.got[one.id] == reference(one, vocab, LENGTH)[0]
    assert pipeline.scheduler.snapshot()["free_blocks"] == SETTINGS[name]["num_blocks"]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "calm"])
def test_and_in_those_runs_they_do_give_way(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        pipeline = race(name, seed, vocab=20, depth=1)
        seen.update(pipeline.scheduler.stats.to_dict())
        seen.update(name for plan in pipeline.plans for name in plan.preempted)
    assert seen["a"] + seen["b"] > 2
    assert (seen["swapped_out_blocks"] > 3) == ("swapped" in name)
