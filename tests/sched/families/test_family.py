"""The sequences of one request: what they share, what each has for itself, who is best."""

from typing import Any

import pytest

from paceline.core.events import Happened
from paceline.core.request import Finish, Sequence
from paceline.sched.explain.journal import note
from paceline.sched.families.beams import Candidate
from paceline.sched.families.family import Family
from tests.sched.support import ask

LIMIT = 20


def family(prompt: int = 5, **fields: Any) -> Family:
    request = ask("a", prompt, **fields)
    return Family.of(Sequence(request, 7, LIMIT, 1.5, request.prompt))


def end(
    made: Family, child: int, outputs: tuple[int, ...], score: float, stop: int | None = None
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
