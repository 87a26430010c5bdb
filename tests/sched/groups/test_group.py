"""The sequences of one request: what they share, what each has for itself, who is best."""

from typing import Any

import pytest

from paceline import RequestError
from paceline.core.events import Happened
from paceline.core.request import Finish, Sequence
from paceline.sched.explain.journal import note
from paceline.sched.groups.beams import Candidate
from paceline.sched.groups.group import SequenceGroup
from tests.sched.groups.support import STOP, children, forked, run
from tests.sched.support import (
    DEPTHS,
    VOCAB,
    Pipeline,
    answer,
    ask,
    commit,
    finish_all,
    preempt,
    small,
    state,
    step,
)

LIMIT = 20


def family(prompt: int = 5, **fields: Any) -> SequenceGroup:
    request = ask("a", prompt, **fields)
    return SequenceGroup.of(Sequence(request, 7, LIMIT, 1.5, request.prompt))


def end(
    made: SequenceGroup, child: int, outputs: tuple[int, ...], score: float, stop: int | None = None
) -> None:
    """Let a child end with this log-probability."""
    one = next(one for one in made.members if one.child == child)
    one.finish = Finish.LENGTH if stop is None else Finish.STOP
    made.scores[child] = score
    made.ended(one, outputs, stop)


def test_children_are_numbered_from_the_leader_on() -> None:
    made = family(n=3)
    assert [one.child for one in made.members] == [0, 1, 2]
    assert [one.serial for one in made.members] == [7, 8, 9]
    assert [one.label for one in made.members] == ["0_a", "1_a", "2_a"]
    assert {one.id for one in made.members} == {"a"}
    assert made.leader is made.members[0]


def test_children_begin_alike() -> None:
    made = family(n=3)
    for one in made.members:
        assert (one.limit, one.arrival, one.state) == (LIMIT, 1.5, "WAITING")
        assert one.tokens is made.request.prompt
        assert one.request is made.request


def test_what_happens_to_one_happens_to_all() -> None:
    made = family(n=2)
    note(made.leader, Happened.SUBMITTED, 1.5, 0)
    assert made.members[1].queued_at == 1.5
    assert made.members[1].life is made.leader.life


def test_keys_are_everyones_own() -> None:
    made = family(n=2)
    made.leader.keys.append(b"k")
    assert made.members[1].keys == []


@pytest.mark.parametrize(("fields", "width"), [({"n": 2, "best_of": 4}, 4), ({"beam_width": 3}, 3)])
def test_there_are_as_many_as_are_chosen_from(fields: dict[str, Any], width: int) -> None:
    assert len(family(**fields).members) == width


@pytest.mark.parametrize(("prompt", "shared"), [(5, 4), (1, 0)])
def test_all_but_the_last_token_of_the_prompt_is_shared(prompt: int, shared: int) -> None:
    assert family(prompt, n=2).fork_point == shared


def test_only_beams_search() -> None:
    assert family(n=2).search is None
    assert family(best_of=2).search is None
    search = family(beam_width=2).search
    assert search is not None
    assert (len(search.running), search.finished) == (2, [])


def test_a_search_ends_with_the_length_of_the_sequence() -> None:
    """Twenty tokens with a prompt of nineteen leave one."""
    search = family(LIMIT - 1, beam_width=2).search
    assert search is not None
    likely = [Candidate(token, -float(token)) for token in (1, 2, 3, 4)]
    assert search.advance([(), ()], [likely, likely]) == []
    assert [(one.tokens, one.finish) for one in search.choices()] == [((1,), Finish.LENGTH)]


def test_the_next_child_leads_when_the_leader_has_ended() -> None:
    made = family(n=3)
    end(made, 0, (1, 2), -1.0)
    assert [one.child for one in made.members] == [1, 2]
    assert made.leader.child == 1


def test_what_was_told_already_is_not_told_again() -> None:
    made = family(n=2)
    for child in (1, 0):
        end(made, child, (5,), -1.0)
    assert made.best() == ()
    assert made.members == []


def test_the_likeliest_are_the_best_whatever_the_order_they_end_in() -> None:
    made = family(n=2, best_of=3)
    end(made, 2, (1, 2), -1.0)
    end(made, 0, (3, 4), -4.0)
    end(made, 1, (5, 6), -2.0, stop=6)
    assert [choice.tokens for choice in made.best()] == [(1, 2), (5, 6)]
    assert [choice.score for choice in made.best()] == [-0.5, -1.0]
    assert [choice.finish for choice in made.best()] == [Finish.LENGTH, Finish.STOP]
    assert [choice.stop_token for choice in made.best()] == [None, 6]


def test_likelihood_is_that_of_a_token() -> None:
    """Or the shortest would always win."""
    made = family(n=1, best_of=2)
    end(made, 0, (1,), -1.0)
    end(made, 1, (2, 2, 2, 2), -2.0)
    assert [choice.tokens for choice in made.best()] == [(2, 2, 2, 2)]


def test_of_equals_the_first_child_is_best() -> None:
    made = family(n=1, best_of=3)
    for child in (2, 1, 0):
        end(made, child, (child,), -1.0)
    assert [choice.tokens for choice in made.best()] == [(0,)]


def test_a_request_ends_as_the_best_of_it_did() -> None:
    made = family(n=1, best_of=2)
    end(made, 0, (1,), -1.0)
    end(made, 1, (2,), -0.5, stop=2)
    assert made.finish is Finish.STOP


def test_a_request_whose_samples_were_told_ends_as_the_first_of_them_did() -> None:
    made = family(n=2)
    end(made, 1, (2,), 0.0, stop=2)
    end(made, 0, (1,), 0.0)
    assert made.finish is Finish.LENGTH


def test_samples_of_one_prompt_have_seeds_of_their_own_and_end_once() -> None:
    """Edge case 62: Seed plus index; without a seed none; one that ended is not told of again."""
    for seed, expected in ((7, [7, 8, 9]), (None, [None] * 3)):
        scheduler = small()
        asked = ask("a", 5, max_tokens=4, n=3, seed=seed)
        scheduler.submit(asked, 0.0)
        pipeline = Pipeline(scheduler, depth=2).run()
        admitted = [new.request for plan in pipeline.plans for new in plan.admitted]
        assert [one.seed for one in admitted] == expected
        assert asked.seed == seed
        assert pipeline.ends == {label: ["length"] for label in ("0_a", "1_a", "2_a", "a")}


def test_an_abort_of_the_parent_reaches_every_child() -> None:
    """Edge case 63: Whether they wait, have yet to fork, run or are on the host; nothing is left of
    them."""
    for steps in range(4):
        scheduler = small(preemption_mode="swap", swap_space=8)
        scheduler.submit(ask("a", 6, max_tokens=9, n=3), 0.0)
        for _ in range(steps):
            step(scheduler)
        if steps == 3:
            preempt(scheduler, "a")
            step(scheduler)
        assert scheduler.abort("a", 0.0)
        scheduler.check()
        assert (scheduler.idle, scheduler.state.sequence_groups) == (True, {})
        told = scheduler.snapshot()
        assert (told["free_blocks"], told["host_free_blocks"]) == (16, 8)
        assert scheduler.state.table.vacant == 4
        assert scheduler.plan(0.0).finished == ("a",)


def test_each_child_has_the_seed_and_its_index() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3, seed=40), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(2)]
    told = {new.request.id: new.request.seed for plan in plans for new in plan.admitted}
    assert told == {"0_a": 40, "1_a": 41, "2_a": 42}


def test_without_a_seed_none_has_one() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=2), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(2)]
    assert [new.request.seed for plan in plans for new in plan.admitted] == [None, None]


def test_outputs_name_the_request_and_the_child() -> None:
    scheduler = small()
    scheduler.submit(ask("b", 2), 0.0)
    scheduler.submit(ask("a", 6, n=2), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, answer(plan, {"b": [1], "0_a": [2], "1_a": [3]}), 0.0)
    assert outputs.request_id.tolist() == ["b", "a", "a"]
    assert outputs.child.tolist() == [-1, 0, 1]
    assert outputs.ids[:, 0].tolist() == [1, 2, 3]
    assert {label: one["tokens"] for label, one in outputs.to_dict().items()} == {
        "b": [1],
        "0_a": [2],
        "1_a": [3],
    }


def test_serials_are_as_many_as_sequences() -> None:
    scheduler = small()
    for name, number in (("a", 3), ("b", 1)):
        scheduler.submit(ask(name, 2, n=number), 0.0)
    step(scheduler)
    assert scheduler.plan(0.0).rows.serial.tolist() == [0, 1, 2, 3]


def test_a_family_is_one_request_in_every_queue_and_count() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, n=4, max_tokens=2), 0.0)
    assert (scheduler.unfinished, scheduler.snapshot()["waiting"]) == (1, ["a"])
    finish_all(scheduler)
    stats = scheduler.stats
    assert (stats.admissions, stats.finished, stats.forks) == (1, 1, 3)
    assert stats.sampled == 8


def test_the_same_id_is_refused_while_any_of_the_family_is_here() -> None:
    scheduler = forked(2, stop_token_ids=(STOP,))
    step(scheduler, **{"0_a": [STOP]})
    with pytest.raises(RequestError, match="'a' is in use"):
        scheduler.submit(ask("a", 3), 0.0)


@pytest.mark.parametrize(
    ("here", "comes", "twin"),
    [
        (("a", 3), ("2_a", 1), "a"),
        (("a", 3), ("0_a", 2), "a"),
        (("2_a", 1), ("a", 3), "2_a"),
        (("2_a", 2), ("a", 3), "2_a"),
    ],
)
def test_no_request_has_the_name_of_anothers_child(
    here: tuple[str, int], comes: tuple[str, int], twin: str
) -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(ask(here[0], 3, n=here[1]), 0.0)
    with pytest.raises(RequestError) as refusal:
        scheduler.submit(ask(comes[0], 3, n=comes[1]), 0.0)
    told = f"request ids {comes[0]!r} and {twin!r} would name the same sequence; give another one"
    assert str(refusal.value) == told
    scheduler.abort(here[0], 0.0)
    scheduler.submit(ask(comes[0], 3, n=comes[1]), 0.0)


@pytest.mark.parametrize("name", ["3_a", "00_a", "²_a", "_a", "x_a", "0_b", "a_0", "0_0_a"])
def test_a_name_that_only_looks_like_a_childs_is_as_good_as_any(name: str) -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(ask("a", 3, max_tokens=2, n=3), 0.0)
    scheduler.submit(ask(name, 3, max_tokens=2), 0.0)
    assert len(finish_all(scheduler)[name]) == 2


def test_the_end_of_a_child_frees_what_it_alone_holds() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))  # 2 blocks for all, and 1 for each
    assert scheduler.snapshot()["free_blocks"] == 16 - 5
    told = commit(scheduler, scheduler.plan(0.0), **{"1_a": [STOP]})
    assert told["1_a"] == {"tokens": [STOP], "finish": "stop"}
    assert "a" not in told
    assert scheduler.snapshot()["free_blocks"] == 16 - 4
    assert list(state(scheduler, "a")["children"]) == ["0", "2"]
    assert list(step(scheduler)["tokens"]) == ["0_a", "2_a"]


def test_the_first_child_may_end_before_the_others() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))
    step(scheduler, **{"0_a": [STOP]})
    assert scheduler.snapshot()["free_blocks"] == 16 - 4
    assert scheduler.snapshot()["running"] == ["a"]
    assert "new; running." in scheduler.explain("a")
    assert set(finish_all(scheduler)) == {"1_a", "2_a", "a"}


def test_the_request_ends_with_its_last_child() -> None:
    scheduler = forked(2, stop_token_ids=(STOP,))
    step(scheduler, **{"1_a": [STOP]})
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, answer(plan, {"0_a": [STOP]}), 0.0)
    assert [(end.child, end.finish, end.stop_token) for end in outputs.finished] == [
        (0, Finish.STOP, STOP),
        (-1, Finish.STOP, None),
    ]
    assert scheduler.idle
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.plan(0.0).finished == ("a",)


def test_two_ends_in_one_step_are_two() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))
    told = commit(scheduler, scheduler.plan(0.0), **{"0_a": [STOP], "2_a": [STOP]})
    assert [label for label, one in told.items() if one["finish"]] == ["0_a", "2_a"]
    assert len(scheduler.plan(0.0).rows) == 1


@DEPTHS
def test_each_end_is_told_once(depth: int) -> None:
    asked = ask("a", 6, max_tokens=12, n=4, seed=3, stop_token_ids=tuple(range(0, VOCAB, 6)))
    pipeline = run(small(num_blocks=32), asked, depth=depth)
    assert sorted(pipeline.ends) == ["0_a", "1_a", "2_a", "3_a", "a"]
    assert {len(ends) for ends in pipeline.ends.values()} == {1}
    assert pipeline.got | children(asked) == pipeline.got
    assert len({len(tokens) for tokens in children(asked).values()}) > 1, "they end apart"


def test_an_abort_frees_everything() -> None:
    scheduler = forked(3)
    assert scheduler.abort("a", 0.0)
    scheduler.check()
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.state.table.vacant == 4
    assert not scheduler.abort("a", 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.finished, len(plan.released)) == (("a",), 3)


def test_an_abort_with_a_step_in_flight_tells_nothing() -> None:
    scheduler = forked(3)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    outputs = scheduler.commit(plan, answer(plan), 0.0)
    assert (outputs.to_dict(), outputs.finished) == ({}, ())
    assert scheduler.stats.stale_rows == 3


def test_an_abort_before_the_fork_gives_the_kept_slots_back() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.state.table.vacant == 1
    scheduler.abort("a", 0.0)
    scheduler.check()
    assert scheduler.state.table.vacant == 4
    assert commit(scheduler, plan) == {}


def test_an_abort_between_the_fork_and_its_plan_is_possible_at_any_point() -> None:
    for steps in range(6):
        scheduler = small()
        scheduler.submit(ask("a", 6, max_tokens=3, n=3), 0.0)
        pipeline = Pipeline(scheduler, 2)
        for _ in range(steps):
            pipeline.launch()
            if len(pipeline.flight) == 2:
                pipeline.land()
        scheduler.abort("a", 0.0)
        scheduler.check()
        pipeline.run()
        assert scheduler.snapshot()["free_blocks"] == 16
        assert pipeline.ends.get("a", ["length"]) == ["length"]


def test_an_abort_of_one_that_waits_or_is_parked() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    scheduler.submit(ask("b", 6, n=3), 0.0, parked="grammar")
    assert scheduler.abort("a", 0.0)
    assert scheduler.abort("b", 0.0)
    scheduler.check()
    assert scheduler.idle


def test_children_that_have_ended_are_not_told_of_again() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))
    step(scheduler, **{"1_a": [STOP]})
    plan = scheduler.plan(0.0)
    told = scheduler.fail(plan, 0.0, "out of memory")
    assert [(end.child, end.finish) for end in told.finished] == [
        (0, Finish.ERROR),
        (2, Finish.ERROR),
        (-1, Finish.ERROR),
    ]
    assert {end.message for end in told.finished} == {"out of memory"}
    assert scheduler.idle
