"""A request is checked when it is made, and where a sequence is tells its state."""

from array import array
from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.events import Happened, Moment
from paceline.core.multimodal import ImageInput
from paceline.core.request import Finish, Request, Sequence, child_label

LARGEST = 2**31 - 1


def ask(prompt: Any = (1, 2, 3), **fields: Any) -> Request:
    return Request("a", prompt, **fields)


def sequence(**fields: Any) -> Sequence:
    request = ask()
    return Sequence(request, serial=0, limit=8, arrival=0.0, tokens=request.prompt, **fields)


# -- token ids --------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [5, 6, 7],
        (5, 6, 7),
        range(5, 8),
        iter([5, 6, 7]),
        array("i", [5, 6, 7]),
        array("q", [5, 6, 7]),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], np.int32),
        np.array([5, 6, 7], np.uint64),
        np.array([5, 0, 6, 0, 7], np.int32)[::2],
        [np.int64(5), np.int32(6), np.uint8(7)],
    ],
    ids=lambda ids: f"{type(ids).__name__}-{getattr(ids, 'dtype', '')}",
)
def test_a_prompt_may_be_any_sequence_of_integers(ids: Iterable[int]) -> None:
    prompt = ask(ids).prompt
    assert prompt.dtype == np.int32
    assert prompt.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "ids",
    [
        [1.0],
        [1, 2.5],
        ["1"],
        "123",
        [None],
        None,
        7,
        [[1, 2]],
        np.array([1.0, 2.0]),
        np.array([[1, 2], [3, 4]]),
        np.array(5),
        np.array(["1"]),
    ],
    ids=repr,
)
def test_what_is_not_a_list_of_integers_is_refused(ids: Any) -> None:
    with pytest.raises(RequestError, match="the prompt of 'a' must be a list of token ids: "):
        ask(ids)


def test_the_refusal_says_what_was_found() -> None:
    with pytest.raises(RequestError, match=r"^the prompt of 'a' must be .*: .*integer"):
        ask([1, 2.5])


def test_a_negative_token_id_is_refused_by_its_number() -> None:
    with pytest.raises(RequestError, match=r"^the prompt of 'a' has a negative token id: -7$"):
        ask([3, -7, -1])


def test_a_token_id_is_at_most_what_32_bits_hold() -> None:
    assert ask([0, LARGEST]).prompt.tolist() == [0, LARGEST]
    for ids in ([LARGEST + 1], [2**63], np.array([LARGEST + 1])):
        with pytest.raises(RequestError, match=r"must be a list of token ids: .+"):
            ask(ids)


def test_a_prompt_is_a_copy_that_cannot_be_written() -> None:
    mine = np.array([1, 2, 3], np.int32)
    prompt = ask(mine).prompt
    mine[0] = 9
    assert prompt.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        prompt[0] = 9
    assert mine.flags.writeable


def test_an_empty_prompt_is_refused() -> None:
    for nothing in ([], (), np.empty(0, np.int32)):
        with pytest.raises(RequestError, match=r"^request 'a': the prompt is empty$"):
            ask(nothing)


@pytest.mark.parametrize("name", ["eos_token_ids", "stop_token_ids"])
def test_stop_tokens_are_kept_as_a_tuple_of_plain_integers(name: str) -> None:
    for ids in ([5, 6], (5, 6), range(5, 7), [np.int64(5), np.int64(6)]):
        kept = getattr(ask(**{name: ids}), name)
        assert kept == (5, 6)
        assert all(type(token) is int for token in kept)
    assert getattr(ask(), name) == ()


@pytest.mark.parametrize("name", ["eos_token_ids", "stop_token_ids"])
def test_bad_stop_tokens_are_refused_by_their_name(name: str) -> None:
    for ids, complaint in (
        ([-5], "has a negative token id: -5"),
        ([1.5], "must be a list of token ids"),
        (5, "must be a list of token ids: 'int' object is not iterable"),
        ("5", "must be a list of token ids"),
        ([LARGEST + 1], "must be a list of token ids"),
    ):
        with pytest.raises(RequestError, match=f"^{name} of 'a' {complaint}"):
            ask(**{name: ids})


# -- the other fields -------------------------------------------------------


@pytest.mark.parametrize("name", ["", None, 7, b"a", ("a",)])
def test_a_request_id_is_a_string_that_says_something(name: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        Request(name, [1])  # pyright: ignore[reportArgumentType]
    assert str(refusal.value) == f"a request id is a non-empty string, not {name!r}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; at least 1 is needed"),
        ({"max_tokens": -3}, "max_tokens is -3; at least 1 is needed"),
        ({"min_tokens": -1, "max_tokens": 5}, "min_tokens is -1; it cannot be negative"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens is 6; it must lie in 0..5"),
        ({"deadline": 0}, "deadline is 0; it must be positive"),
        ({"deadline": -1.0}, "deadline is -1.0; it must be positive"),
        ({"deadline": float("nan")}, "deadline is nan; it must be positive"),
        ({"token_deadline": float("inf")}, "token_deadline is inf; it must be positive and finite"),
        ({"token_deadline": 0.0}, "token_deadline is 0.0; it must be positive and finite"),
        (
            {"deadline": 1.0, "token_deadline": -1.0},
            "token_deadline is -1.0; it must be positive and finite",
        ),
        ({"drafts": -1}, "drafts is -1; it cannot be negative"),
        ({"n": 0}, "n is 0; at least 1 is needed"),
        ({"n": -2, "best_of": 3}, "n is -2; at least 1 is needed"),
        ({"n": 3, "best_of": 2}, "best_of is 2; at least n (3) is needed"),
        ({"best_of": 0}, "best_of is 0; at least n (1) is needed"),
        ({"beam_width": 1}, "beam_width is 1; it must be at least 2, and at least n (1)"),
        ({"beam_width": -4}, "beam_width is -4; it must be at least 2, and at least n (1)"),
        ({"n": 4, "beam_width": 3}, "beam_width is 3; it must be at least 2, and at least n (4)"),
        (
            {"beam_width": 3, "best_of": 2},
            "best_of is for sampling; beam_width says how many beams there are",
        ),
        (
            {"beam_width": 2, "early_stopping": "soon"},
            "early_stopping is 'soon'; True, False or \"never\"",
        ),
        (
            {"beam_width": 2, "length_penalty": float("nan")},
            "length_penalty is nan; it must lie in [-10, 10]",
        ),
        (
            {"beam_width": 2, "length_penalty": float("inf")},
            "length_penalty is inf; it must lie in [-10, 10]",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError) as refusal:
        ask(**fields)
    assert str(refusal.value) == f"request 'a': {problem}"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 1},
        {"max_tokens": 5, "min_tokens": 5},
        {"max_tokens": None, "min_tokens": 1000},
        {"deadline": 0.001, "token_deadline": 0.001},
        {"drafts": 0},
        {"priority": -3},
        {"n": 5},
        {"n": 2, "best_of": 2},
        {"n": 2, "beam_width": 2},
        {"beam_width": 4, "best_of": 4},
        {"beam_width": 2, "length_penalty": -1.5, "early_stopping": "never"},
    ],
)
def test_the_least_and_the_most_that_make_sense_are_taken(fields: dict[str, Any]) -> None:
    request = ask(**fields)
    assert {name: getattr(request, name) for name in fields} == fields


def test_a_request_is_never_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ask().max_tokens = 7  # pyright: ignore[reportAttributeAccessIssue]


def test_two_requests_are_never_the_same_one() -> None:
    assert ask() != ask()
    assert len({ask(), ask()}) == 2


def test_what_is_left_out_asks_for_nothing_special() -> None:
    request = ask()
    assert (request.max_tokens, request.min_tokens, request.ignore_eos) == (None, 0, False)
    assert (request.seed, request.arrival, request.deadline, request.drafts) == (None,) * 4
    assert (request.tenant, request.cache_salt, request.adapter) == ("", "", "")
    assert (request.priority, request.images) == (0, ())
    assert (request.n, request.best_of, request.beam_width) == (1, None, 0)
    assert (request.length_penalty, request.early_stopping) == (1.0, False)


def test_images_are_carried_as_they_are() -> None:
    images = (ImageInput("cat", 0, 2), ImageInput("dog", 2, 1))
    assert ask(images=images).images == images
    with pytest.raises(FrozenInstanceError):
        images[0].offset = 1  # pyright: ignore[reportAttributeAccessIssue]


# -- several sequences ------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "width", "silent"),
    [
        ({}, 1, False),
        ({"n": 3}, 3, False),
        ({"n": 3, "best_of": 3}, 3, False),
        ({"best_of": 1}, 1, False),
        ({"n": 2, "best_of": 5}, 5, True),
        ({"n": 2, "beam_width": 4}, 4, True),
        ({"n": 2, "beam_width": 2}, 2, True),
    ],
)
def test_a_request_runs_as_many_sequences_as_it_may_choose_from(
    fields: dict[str, Any], width: int, silent: bool
) -> None:
    assert (ask(**fields).width, ask(**fields).silent) == (width, silent)


@pytest.mark.parametrize(
    ("fields", "candidates"),
    [
        ({"beam_width": 0}, 0),
        ({}, 6),
        ({"eos_token_ids": [2]}, 6),
        ({"eos_token_ids": [2, 3], "stop_token_ids": [4]}, 12),
        ({"eos_token_ids": [2, 3], "stop_token_ids": [3]}, 9),
        ({"eos_token_ids": [2, 3, 4], "ignore_eos": True}, 6),
    ],
)
def test_so_many_candidates_are_asked_for_that_all_beams_go_on_whatever_ends(
    fields: dict[str, Any], candidates: int
) -> None:
    assert ask(**{"beam_width": 3} | fields).candidates == candidates


def test_a_child_has_a_name_and_a_seed_of_its_own() -> None:
    request = ask(n=3, seed=40, max_tokens=7, tenant="t")
    children = [request.child(index) for index in range(3)]
    assert [child.id for child in children] == ["0_a", "1_a", "2_a"]
    assert [child.seed for child in children] == [40, 41, 42]
    assert all(child.prompt is request.prompt for child in children)
    assert {(child.max_tokens, child.tenant) for child in children} == {(7, "t")}
    assert request.seed == 40


def test_a_child_of_a_request_without_a_seed_has_none() -> None:
    assert [ask(n=2).child(index).seed for index in range(2)] == [None, None]


def test_a_label_is_the_id_or_names_the_child() -> None:
    assert (child_label("a", -1), child_label("a", 0), child_label("a", 12)) == ("a", "0_a", "12_a")
    assert sequence().label == "a"
    assert (sequence(child=2).label, sequence(child=2).id) == ("2_a", "a")


# -- stopping ---------------------------------------------------------------

EOS, STOP, OTHER = 2, 7, 9


def test_the_end_token_and_the_stop_tokens_stop_and_no_other() -> None:
    request = ask(eos_token_ids=[EOS], stop_token_ids=[STOP])
    assert request.stops_at(EOS, outputs=1)
    assert request.stops_at(STOP, outputs=1)
    assert not request.stops_at(OTHER, outputs=1)


def test_nothing_stops_a_request_that_names_no_tokens() -> None:
    assert not any(ask().stops_at(token, outputs=5) for token in range(10))


def test_below_min_tokens_nothing_stops() -> None:
    request = ask(min_tokens=3, eos_token_ids=[EOS], stop_token_ids=[STOP])
    for token in (EOS, STOP):
        stops = [request.stops_at(token, outputs) for outputs in range(1, 5)]
        assert stops == [False, False, True, True]


def test_an_ignored_end_token_does_not_stop() -> None:
    request = ask(ignore_eos=True, eos_token_ids=[EOS], stop_token_ids=[STOP])
    assert not request.stops_at(EOS, outputs=1)
    assert request.stops_at(STOP, outputs=1)


def test_an_ignored_end_token_that_is_a_stop_token_too_stops() -> None:
    request = ask(ignore_eos=True, eos_token_ids=[EOS], stop_token_ids=[EOS])
    assert request.stops_at(EOS, outputs=1)


def test_an_end_token_ends_a_constrained_request_at_once() -> None:
    """A grammar allows nothing after it."""
    fields: dict[str, Any] = {"min_tokens": 5, "ignore_eos": True, "stop_token_ids": (7,)}
    request = ask(eos_token_ids=(EOS,), constraint=Constraint.regex("a"), **fields)
    assert request.stops_at(EOS, outputs=1)
    assert not request.stops_at(7, outputs=1)
    assert request.stops_at(7, outputs=5)


def test_every_one_of_several_end_tokens_stops() -> None:
    request = ask(eos_token_ids=[EOS, OTHER])
    assert [request.stops_at(token, outputs=1) for token in (EOS, OTHER, STOP)] == [
        True,
        True,
        False,
    ]


# -- states -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "WAITING"),
        ({"parked": "grammar"}, "WAITING_FOR_GRAMMAR"),
        ({"parked": "remote_kv"}, "WAITING_FOR_REMOTE_KV"),
        ({"parked": "lunch"}, "WAITING"),
        ({"slot": 0}, "RUNNING"),
        ({"slot": 3, "preemptions": 2}, "RUNNING"),
        ({"preemptions": 1}, "PREEMPTED"),
        ({"preemptions": 1, "parked": "grammar"}, "WAITING_FOR_GRAMMAR"),
        ({"preemptions": 1, "swapped": True}, "SWAPPED"),
        ({"finish": Finish.STOP}, "FINISHED_STOPPED"),
        ({"finish": Finish.LENGTH}, "FINISHED_LENGTH"),
        ({"finish": Finish.ABORT}, "FINISHED_ABORTED"),
        ({"finish": Finish.ERROR}, "FINISHED_ERROR"),
        ({"finish": Finish.STOP, "preemptions": 1}, "FINISHED_STOPPED"),
    ],
)
def test_the_state_follows_from_where_a_sequence_is(fields: dict[str, Any], state: str) -> None:
    assert sequence(**fields).state == state


def test_every_way_to_finish_has_a_state_and_the_word_that_clients_know() -> None:
    assert [finish.value for finish in Finish] == ["stop", "length", "abort", "timeout", "error"]
    assert len({sequence(finish=finish).state for finish in Finish}) == len(Finish)


def test_the_first_moment_of_a_life_is_when_it_was_queued() -> None:
    life = [Moment(Happened.SUBMITTED, 1.5, 0), Moment(Happened.PARKED, 2.5, 1)]
    one = sequence(life=life)
    assert one.queued_at == 1.5
    assert one.id == "a"


def test_a_sequence_has_started_once_it_was_admitted() -> None:
    submitted, admitted = Moment(Happened.SUBMITTED, 0.0, 0), Moment(Happened.ADMITTED, 1.0, 1)
    assert not sequence(life=[submitted]).started
    assert sequence(life=[submitted, admitted]).started
    assert sequence(life=[submitted, admitted, Moment(Happened.PREEMPTED, 2.0, 2)]).started


def test_a_new_sequence_is_nowhere_and_has_nothing() -> None:
    one = sequence()
    assert (one.slot, one.parked, one.finish) == (-1, "", None)
    assert (one.preemptions, one.cached) == (0, 0)
    assert one != sequence()


def test_sequences_share_neither_keys_nor_lives() -> None:
    one, other = sequence(), sequence()
    one.keys.append(b"k")
    one.life.append(Moment(Happened.SUBMITTED, 0.0, 0))
    assert (other.keys, other.life) == ([], [])


def accepted(fields: list[tuple[str, Any]]) -> list[str]:
    """Those of `fields` that do not end in a RequestError."""
    found: list[str] = []
    for name, value in fields:
        try:
            ask(**{name: value})
        except RequestError:
            continue
        except (TypeError, ValueError) as error:
            found.append(f"{name}={value!r}: {type(error).__name__}")
        else:
            found.append(f"{name}={value!r}")
    return found


@pytest.mark.parametrize("name", ["eos_token_ids", "stop_token_ids"])
def test_stop_tokens_are_a_tuple_whatever_they_came_in(name: str) -> None:
    for ids in ([], np.array([0]), np.array([3, 4])):
        kept = getattr(ask(**{name: ids}), name)
        assert isinstance(kept, tuple)
        assert kept == tuple(ids)


def test_a_field_of_the_wrong_type_is_refused() -> None:
    wrong: list[tuple[str, Any]] = [
        *((name, value) for name in ("eos_token_ids", "stop_token_ids") for value in (None, 0)),
        *(("max_tokens", value) for value in ("4", 1.5, True)),
        *(("min_tokens", value) for value in (None, "1", 0.5)),
        *((name, value) for name in ("drafts", "seed") for value in ("1", 1.5)),
        *(("priority", value) for value in ("x", None)),
        *((name, "x") for name in ("arrival", "deadline", "token_deadline")),
        *((name, value) for name in ("tenant", "cache_salt", "adapter") for value in (None, 5)),
        ("images", None),
        ("images", [1]),
        ("images", (1,)),
        *((name, value) for name in ("n", "beam_width") for value in (None, "2", 2.0, True)),
        *(("best_of", value) for value in ("2", 2.0, True)),
        *(("length_penalty", value) for value in (None, "1", True)),
        *(("early_stopping", value) for value in (None, 1, 0.0)),
    ]
    assert accepted(wrong) == []


def test_a_field_that_no_schedule_could_use_is_refused() -> None:
    wrong: list[tuple[str, Any]] = [
        ("arrival", float("nan")),
        ("arrival", float("inf")),
        *((name, "\ud800") for name in ("tenant", "cache_salt", "adapter")),
        *(("images", (image,)) for image in (ImageInput("\ud800", 0, 1), ImageInput("x", 3, 1))),
    ]
    assert accepted(wrong) == []


def test_an_image_covers_at_least_one_position_and_ends_within_the_prompt() -> None:
    for image in (ImageInput("x", 0, 3), ImageInput("x", 2, 1)):
        assert ask(images=(image,)).images == (image,)
    wrong = [ImageInput("x", 2, 2), ImageInput("x", 0, 4)]
    assert accepted([("images", (image,)) for image in wrong]) == [], "of a prompt of three tokens"


def test_a_field_of_the_wrong_type_in_disguise_is_refused() -> None:
    wrong: list[tuple[str, Any]] = [
        *((name, np.float64(1.5)) for name in ("max_tokens", "min_tokens", "seed", "drafts")),
        *((name, np.str_("4")) for name in ("max_tokens", "priority", "arrival", "deadline")),
        *((name, np.int64(0)) for name in ("tenant", "cache_salt", "adapter", "images")),
        ("priority", float("nan")),
    ]
    assert accepted(wrong) == []


def test_what_cannot_be_continued_is_refused() -> None:
    for problem, fields in {
        "generated has 1 entries for 2 sequences": {"n": 2, "generated": ((1,),)},
        "every sequence has ended": {"n": 2, "generated": (None, None)},
        "only the best sequences are returned": {"best_of": 2, "generated": ((1,), ())},
        "2 tokens are generated already, and max_tokens is 2": {
            "max_tokens": 2,
            "generated": ((1, 2),),
        },
    }.items():
        with pytest.raises(RequestError, match=problem):
            ask(**fields)


def test_a_sequence_has_the_prompt_and_what_it_has_generated() -> None:
    assert ask(generated=((8, 9),)).known(0).tolist() == [1, 2, 3, 8, 9]
    family = ask(n=3, generated=((8,), None, ()))
    assert family.open_children == [0, 2]
    assert family.known(2) is family.prompt
    assert ask(n=2).open_children == [0, 1]
