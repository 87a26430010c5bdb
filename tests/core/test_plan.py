"""Plans, results and outputs as plain data, and back."""

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import StepError
from paceline.core.plan import (
    NO_BLOCK,
    NO_IDS,
    NO_OUTPUTS,
    NO_ROWS,
    NOTHING_GROWN,
    Admitted,
    Candidates,
    Choice,
    Ended,
    Grown,
    Outputs,
    Plan,
    Rows,
    StateMoves,
    StepResult,
)
from paceline.core.request import Finish, Request

KEYS = {
    "step",
    "tokens",
    "new",
    "resumed",
    "preempted",
    "finished",
    "total",
    "drafts",
    "encoder",
    "blocks",
    "copies",
    "swap_out",
    "swap_in",
    "states",
}


def rows(
    *ids: str,
    count: list[int],
    drafts: list[int] | None = None,
    children: list[int] | None = None,
) -> Rows:
    """Rows in slots 10, 11, ..., all of which sample."""
    return Rows(
        slot=np.arange(10, 10 + len(ids)),
        epoch=np.zeros(len(ids), np.int32),
        serial=np.arange(len(ids)),
        request_id=np.array(ids, object),
        child=np.array(children or [-1] * len(ids), np.int32),
        count=np.array(count, np.int32),
        drafts=np.array(drafts or [0] * len(ids), np.int32),
        samples=np.ones(len(ids), np.bool_),
    )


def plan(made: Rows, **fields: Any) -> Plan:
    return Plan(7, made, np.zeros(len(made), np.int32), **fields)


def grown(slot: list[int], index: list[int], block: list[int]) -> Grown:
    return Grown(np.array(slot), np.array(index), np.array(block, np.int32))


def admitted(name: str, slot: int, blocks: tuple[int, ...], resumed: bool) -> Admitted:
    request = Request(name, [1, 2, 3])  # pyright: ignore[reportArgumentType]
    return Admitted(slot, request, request.prompt, 0, blocks, resumed)


# -- plans ------------------------------------------------------------------


def test_a_plan_tells_all_of_itself_by_request_id() -> None:
    made = plan(
        rows("a", "b", "c", "d", count=[1, 3, 5, 2], drafts=[0, 2, 0, 0]),
        grown=grown([10, 11, 11, 12], [4, 2, 3, 3], [21, 22, 23, 33]),
        admitted=(
            admitted("c", 12, (30, 31, 32), resumed=False),
            admitted("d", 13, (40,), resumed=True),
        ),
        released=(3,),
        preempted=("d", "e"),
        finished=("x", "y"),
    )
    assert made.to_dict() == {
        "step": 7,
        "tokens": {"a": 1, "b": 3, "c": 5, "d": 2},
        "new": ["c"],
        "resumed": ["d"],
        "preempted": ["d", "e"],
        "finished": ["x", "y"],
        "total": 11,
        "drafts": {"b": 2},
        "encoder": {},
        "blocks": {"a": [[21]], "b": [[22, 23]], "c": [[30, 31, 32, 33]], "d": [[40]]},
        "copies": [],
        "swap_out": [],
        "swap_in": [],
        "states": {},
    }


def test_a_plan_of_nothing_has_all_its_keys_too() -> None:
    told = Plan(1, NO_ROWS, NO_ROWS.count).to_dict()
    assert told.keys() == KEYS
    assert told["step"] == 1
    assert not any(told[key] for key in KEYS - {"step"})


def test_a_plan_that_grows_nobody_names_no_blocks() -> None:
    assert plan(rows("a", count=[1])).to_dict()["blocks"] == {}


def test_what_grew_in_two_goes_is_told_in_that_order() -> None:
    both = grown([10, 11], [4, 2], [21, 22]).followed_by(grown([10], [5], [23]))
    assert (both.slot.tolist(), both.index.tolist()) == ([10, 11, 10], [4, 2, 5])
    made = plan(rows("a", "b", count=[1, 1]), grown=both)
    assert made.to_dict()["blocks"] == {"a": [[21, 23]], "b": [[22]]}
    assert NOTHING_GROWN.followed_by(both).block.tolist() == [21, 22, 23]
    assert both.followed_by(NOTHING_GROWN).block.dtype == np.int32


def test_new_blocks_are_told_by_group_without_entries_that_have_none() -> None:
    first = replace(grown([10], [4], [21]), more=(grown([10, 11], [4, 1], [31, 32]),))
    both = first.followed_by(replace(NOTHING_GROWN, more=(grown([11], [2], [33]),)))
    new = replace(admitted("c", 12, (40, 41), resumed=False), more=((NO_BLOCK, 51),))
    made = plan(rows("a", "b", "c", count=[1, 1, 1]), grown=both, admitted=(new,))
    assert made.to_dict()["blocks"] == {
        "a": [[21], [31]],
        "b": [[], [32, 33]],
        "c": [[40, 41], [51]],
    }
    assert first.followed_by(NOTHING_GROWN).more[0].block.tolist() == [31, 32]


def test_rows_keep_their_order() -> None:
    told = plan(rows("b", "c", "a", count=[1, 1, 1])).to_dict()
    assert list(told["tokens"]) == ["b", "c", "a"]


def test_what_a_plan_tells_is_plain_data() -> None:
    made = plan(
        rows("a", count=[2], drafts=[1]),
        grown=grown([10], [0], [5]),
        admitted=(admitted("a", 10, (4,), resumed=False),),
    )
    told = made.to_dict()
    assert json.loads(json.dumps(told)) == told


def test_a_row_is_called_by_its_request_or_as_a_child_of_it() -> None:
    made = rows("a", "b", "b", count=[1, 1, 1], children=[-1, 0, 1])
    assert made.labels == ["a", "0_b", "1_b"]
    assert NO_ROWS.labels == []


def test_children_are_told_one_by_one() -> None:
    made = plan(
        rows("b", "b", count=[1, 3], drafts=[0, 2], children=[0, 1]),
        grown=grown([10, 11], [1, 1], [21, 22]),
        admitted=(admitted("1_b", 11, (30,), resumed=False),),
    )
    told = made.to_dict()
    assert told["tokens"] == {"0_b": 1, "1_b": 3}
    assert told["drafts"] == {"1_b": 2}
    assert told["blocks"] == {"0_b": [[21]], "1_b": [[30, 22]]}


def test_what_is_copied_is_told_in_pairs() -> None:
    made = plan(NO_ROWS, copies=((1, 2), (1, 3)), swap_out=((4, 0),), swap_in=((5, 6),))
    told = made.to_dict()
    assert told["copies"] == [[1, 2], [1, 3]]
    assert (told["swap_out"], told["swap_in"]) == ([[4, 0]], [[5, 6]])
    assert json.loads(json.dumps(told)) == told


MOVES = StateMoves(
    saves_before=((0, (1, 2)),),
    swap_out=((1, (3,)),),
    copies=((0, 3),),
    loads=((4, (5, 6)),),
    swap_in=((5, (7,)),),
    saves=((7, (8, 9)),),
    block_copies=((10, 11),),
)


def test_copies_of_states_are_told_by_kind() -> None:
    told = plan(NO_ROWS, states=MOVES).to_dict()
    assert told["states"] == {
        "saves_before": [[0, [1, 2]]],
        "swap_out": [[1, [3]]],
        "copies": [[0, 3]],
        "loads": [[4, [5, 6]]],
        "swap_in": [[5, [7]]],
        "saves": [[7, [8, 9]]],
        "block_copies": [[10, 11]],
    }
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    "name", ["saves_before", "swap_out", "copies", "loads", "swap_in", "saves"]
)
def test_a_plan_that_moves_states_is_not_empty(name: str) -> None:
    moves = StateMoves(**{name: getattr(MOVES, name)})
    assert not moves.empty
    assert not plan(NO_ROWS, states=moves).empty
    assert StateMoves().empty


@pytest.mark.parametrize("name", ["copies", "swap_out", "swap_in"])
def test_a_plan_that_moves_blocks_is_not_empty(name: str) -> None:
    assert not plan(NO_ROWS, **{name: ((1, 2),)}).empty
    assert not plan(rows("a", count=[1])).empty
    assert plan(NO_ROWS, released=(1,), finished=("a",), preempted=("b",)).empty


def test_the_total_is_a_plain_sum() -> None:
    total = plan(rows("a", "b", count=[2, 40])).total
    assert (total, type(total)) == (42, int)
    assert Plan(1, NO_ROWS, NO_ROWS.count).total == 0


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (plan(rows("a", count=[1])), "step"),
        (rows("a", count=[1]), "count"),
        (NOTHING_GROWN, "block"),
        (admitted("a", 0, (), resumed=False), "slot"),
        (StepResult(NO_IDS, NO_ROWS.count), "ids"),
        (Candidates(NO_IDS, NO_IDS.astype(np.float32)), "ids"),
        (NO_OUTPUTS, "ids"),
        (Ended("a", Finish.STOP), "finish"),
        (Choice((1,), Finish.STOP, -0.5), "score"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages_are_never_changed(message: Any, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(message, field, None)


def test_a_plan_equals_only_itself() -> None:
    made = plan(rows("a", count=[1]))
    assert made == made  # noqa: PLR0124
    assert made != plan(made.rows)


def test_the_shared_empty_arrays_cannot_be_written() -> None:
    shared = [NO_IDS, NOTHING_GROWN.slot, NOTHING_GROWN.index, NOTHING_GROWN.block]
    shared += [getattr(NO_ROWS, name) for name in Rows.__dataclass_fields__]
    assert all(array.size == 0 and not array.flags.writeable for array in shared)
    assert len(NO_ROWS) == 0
    assert NO_IDS.shape == (0, 1)


# -- results ----------------------------------------------------------------


def test_a_result_holds_tokens_by_row_whatever_the_order_they_come_in() -> None:
    made = plan(rows("a", "b", "c", count=[1, 1, 1]))
    result = StepResult.of(made, {"c": [30], "a": [10]})
    assert result.ids.tolist() == [[10], [-1], [30]]
    assert result.count.tolist() == [1, 0, 1]
    assert (result.ids.dtype, result.count.dtype) == (np.int32, np.int32)


def test_a_result_is_as_wide_as_its_longest_row() -> None:
    made = plan(rows("a", "b", count=[3, 1], drafts=[2, 0]))
    result = StepResult.of(made, {"a": [10, 11, 12], "b": [20]})
    assert result.ids.tolist() == [[10, 11, 12], [20, -1, -1]]
    assert result.count.tolist() == [3, 1]


@pytest.mark.parametrize("new", [(5, 6), iter([5, 6]), np.array([5, 6]), range(5, 7)])
def test_new_tokens_come_in_any_iterable(new: Any) -> None:
    result = StepResult.of(plan(rows("a", count=[2], drafts=[1])), {"a": new})
    assert result.ids.tolist() == [[5, 6]]


def test_no_token_is_the_same_as_being_absent() -> None:
    result = StepResult.of(plan(rows("a", count=[1])), {"a": []})
    assert (result.ids.tolist(), result.count.tolist()) == ([[-1]], [0])


def test_the_result_of_no_rows_has_no_rows() -> None:
    result = StepResult.of(Plan(1, NO_ROWS, NO_ROWS.count), {})
    assert result.ids.shape == (0, 1)
    assert result.count.shape == (0,)


def test_tokens_for_a_request_without_a_row_are_refused_by_name() -> None:
    made = plan(rows("a", count=[1]))
    with pytest.raises(StepError, match=r"^step 7 has no row for \['x', 'y'\]$"):
        StepResult.of(made, {"x": [1], "a": [2], "y": []})


def test_a_result_names_children_as_the_rows_do() -> None:
    made = plan(rows("b", "b", count=[1, 1], children=[0, 1]))
    result = StepResult.of(made, {"1_b": [5], "0_b": [4]})
    assert result.ids.tolist() == [[4], [5]]
    with pytest.raises(StepError, match=r"no row for \['b'\]"):
        StepResult.of(made, {"b": [5]})


def test_a_result_has_neither_log_probabilities_nor_candidates_unless_given() -> None:
    result = StepResult.of(plan(rows("a", count=[1])), {"a": [5]})
    assert (result.logprob, result.candidates) == (None, None)


def test_log_probabilities_stand_beside_the_tokens() -> None:
    made = plan(rows("a", "b", count=[2, 1], drafts=[1, 0]))
    result = StepResult.of(made, {"a": [5, 6], "b": [7]}, logprobs={"a": iter([-0.5, -1.5])})
    assert result.logprob is not None
    assert result.logprob.tolist() == [[-0.5, -1.5], [0.0, 0.0]]
    assert result.logprob.dtype == np.float32


def test_candidates_stand_in_the_order_given_and_are_filled_up() -> None:
    made = plan(rows("a", "b", "c", count=[1, 1, 1]))
    told = {"c": [(8, -0.5)], "b": [(5, -1.0), (6, -2.0)]}
    result = StepResult.of(made, {"a": [1], "b": [1], "c": [1]}, candidates=told)
    assert result.candidates is not None
    assert result.candidates.ids.tolist() == [[-1, -1], [5, 6], [8, -1]]
    assert result.candidates.logprob.tolist() == [[-np.inf] * 2, [-1.0, -2.0], [-0.5, -np.inf]]
    assert result.candidates.ids.dtype == np.int32
    assert result.candidates.logprob.dtype == np.float32


@pytest.mark.parametrize("what", ["logprobs", "candidates"])
def test_scores_for_a_request_without_a_row_are_refused_by_name(what: str) -> None:
    with pytest.raises(StepError, match=r"^step 7 has no row for \['x'\]$"):
        StepResult.of(plan(rows("a", count=[1])), {"a": [1]}, **{what: {"x": []}})


# -- outputs ----------------------------------------------------------------


def outputs(
    *ids: str,
    tokens: list[list[int]],
    count: list[int],
    finished: tuple[Ended, ...] = (),
    children: list[int] | None = None,
) -> Outputs:
    return Outputs(
        serial=np.arange(len(ids)),
        request_id=np.array(ids, object),
        child=np.array(children or [-1] * len(ids), np.int32),
        handle=np.arange(len(ids)),
        ids=np.array(tokens, np.int32),
        count=np.array(count, np.int32),
        finished=finished,
    )


def test_outputs_tell_what_each_request_got() -> None:
    made = outputs(
        "a",
        "b",
        "c",
        tokens=[[10, 11], [20, -1], [-1, -1]],
        count=[2, 1, 0],
        finished=(Ended("b", Finish.STOP, stop_token=20),),
    )
    assert made.to_dict() == {
        "a": {"tokens": [10, 11], "finish": None},
        "b": {"tokens": [20], "finish": "stop"},
    }


def test_an_end_without_a_token_is_told() -> None:
    ends = (Ended("x", Finish.ERROR, message="the step failed"), Ended("y", Finish.ABORT))
    made = outputs("a", tokens=[[10]], count=[1], finished=ends)
    assert made.to_dict() == {
        "a": {"tokens": [10], "finish": None},
        "x": {"tokens": [], "finish": "error"},
        "y": {"tokens": [], "finish": "abort"},
    }


def test_outputs_name_the_child() -> None:
    made = outputs(
        "b",
        "b",
        tokens=[[10], [20]],
        count=[1, 1],
        children=[0, 1],
        finished=(Ended("b", Finish.STOP, 20, child=1), Ended("b", Finish.LENGTH)),
    )
    assert made.to_dict() == {
        "0_b": {"tokens": [10], "finish": None},
        "1_b": {"tokens": [20], "finish": "stop"},
        "b": {"tokens": [], "finish": "length"},
    }


def test_choices_are_told_with_the_end_best_first() -> None:
    best = (Choice((5, 6), Finish.STOP, -0.5, 6), Choice((5, 7, 8), Finish.LENGTH, -0.7))
    end = Ended("b", Finish.STOP, choices=best)
    told = outputs(tokens=[], count=[], finished=(end,)).to_dict()
    assert told == {"b": {"tokens": [], "finish": "stop", "choices": [[5, 6], [5, 7, 8]]}}


def test_what_outputs_tell_is_plain_data() -> None:
    told = outputs("a", tokens=[[10]], count=[1]).to_dict()
    assert json.loads(json.dumps(told)) == told


def test_what_is_not_a_list_of_token_ids_is_refused() -> None:
    for new in ([1.7], ["17"], [None], [2**40], 17, "5", [-3], [[3]]):
        with pytest.raises(StepError, match="'a'"):
            StepResult.of(plan(rows("a", count=[1])), {"a": new})  # pyright: ignore
