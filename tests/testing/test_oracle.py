"""The oracle notices every mistake in the KV cache; plans are written by hand to make them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from paceline.core.multimodal import Embedded, Encoding, ImageInput
from paceline.core.plan import NO_ROWS, NOTHING_GROWN, Admitted, Grown, Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.sched.scheduler import Scheduler
from paceline.testing.oracle import GARBAGE, OracleRunner
from paceline.testing.reference import digest_of, likeliest, logprobs, reference

VOCAB, SIZE, MODEL_LENGTH = 5000, 2, 40


@dataclass(frozen=True)
class Row:
    slot: int
    name: str
    count: int
    start: int
    samples: bool = True
    drafts: int = 0
    child: int = -1


def ask(name: str, *prompt: int, **fields: Any) -> Request:
    return Request(name, prompt, **fields)  # pyright: ignore[reportArgumentType]


def enter(slot: int, request: Request, *blocks: int, cached: int = 0, more: Any = ()) -> Admitted:
    """A request that takes up a slot, with `more` outputs known from before."""
    tokens = np.append(request.prompt, np.array(more, np.int32))
    return Admitted(slot, request, tokens, cached, blocks, resumed=bool(len(more)))


def plan(
    *rows: Row,
    admitted: tuple[Admitted, ...] = (),
    released: tuple[int, ...] = (),
    grown: tuple[tuple[int, int, int], ...] = (),
    **moves: Any,
) -> Plan:
    """A plan of these rows; `grown` has slot, index and block."""
    made = Rows(
        slot=np.array([row.slot for row in rows], np.intp),
        epoch=np.zeros(len(rows), np.int32),
        serial=np.arange(len(rows)),
        request_id=np.array([row.name for row in rows], object),
        child=np.array([row.child for row in rows], np.int32),
        count=np.array([row.count for row in rows], np.int32),
        drafts=np.array([row.drafts for row in rows], np.int32),
        samples=np.array([row.samples for row in rows], np.bool_),
    )
    start = np.array([row.start for row in rows], np.int32)
    growth = NOTHING_GROWN
    if grown:
        slot, index, block = (np.array(column) for column in zip(*grown, strict=True))
        growth = Grown(slot, index, block.astype(np.int32))
    return Plan(1, made, start, growth, admitted, released, **moves)


def told(result: StepResult) -> list[list[int]]:
    return [ids[:count] for ids, count in zip(result.ids.tolist(), result.count, strict=True)]


def oracle(accept: float = 0.0) -> OracleRunner:
    return OracleRunner(blocks=8, block_size=SIZE, vocab=VOCAB, accept=accept)


A = ask("a", 1, 2, 3, 4, 5)
FIRST = reference(A, VOCAB, MODEL_LENGTH)[0]


def prefilled(accept: float = 0.0) -> OracleRunner:
    """An oracle that has computed the five tokens of `a` in slot 0, blocks 0, 1 and 2."""
    runner = oracle(accept)
    result = runner.run(plan(Row(0, "a", 5, 0), admitted=(enter(0, A, 0, 1, 2),)))
    assert told(result) == [FIRST[:1]]
    return runner


# -- what is right passes ---------------------------------------------------


def test_a_sequence_computed_in_any_chunks_samples_the_same() -> None:
    for chunks in ([5], [1, 4], [2, 2, 1], [1, 1, 1, 1, 1]):
        runner, start = oracle(), 0
        for count in chunks:
            first = (enter(0, A, 0, 1, 2),) if start == 0 else ()
            row = Row(0, "a", count, start, samples=start + count == 5)
            result = runner.run(plan(row, admitted=first))
            start += count
        assert told(result) == [FIRST[:1]]
        assert runner.computed == 5


def test_decoding_step_by_step_gives_the_reference() -> None:
    runner, got = prefilled(), FIRST[:1]
    for position in range(5, 9):
        new = [(0, position // SIZE, position // SIZE)] if position % SIZE == 0 else []
        result = runner.run(plan(Row(0, "a", 1, position), grown=tuple(new)))
        got += told(result)[0]
    assert got == FIRST[:5]


def test_a_prefix_computed_by_another_in_an_earlier_row_of_the_step_may_be_read() -> None:
    b = ask("b", 1, 2, 3, 4, 6)
    both = (enter(0, A, 0, 1, 2), enter(1, b, 0, 1, 3, cached=4))
    result = oracle().run(plan(Row(0, "a", 5, 0), Row(1, "b", 1, 4), admitted=both))
    assert told(result) == [FIRST[:1], reference(b, VOCAB, MODEL_LENGTH)[0][:1]]


def test_a_preempted_sequence_goes_on_with_the_same_tokens() -> None:
    runner = prefilled()
    back = enter(3, A, 4, 5, 6, more=FIRST[:1])
    result = runner.run(plan(Row(3, "a", 6, 0), admitted=(back,), released=(0,)))
    assert told(result) == [FIRST[1:2]]


def test_drafts_that_are_accepted_yield_several_tokens_and_rejected_ones_one() -> None:
    row, more = Row(0, "a", 3, 5, drafts=2), ((0, 3, 3),)
    assert told(prefilled(accept=1.0).run(plan(row, grown=more))) == [FIRST[1:4]]
    assert told(prefilled(accept=0.0).run(plan(row, grown=more))) == [FIRST[1:2]]


def test_after_a_rejection_the_sequence_goes_on_where_it_really_is() -> None:
    runner = prefilled(accept=0.0)
    runner.run(plan(Row(0, "a", 3, 5, drafts=2), grown=((0, 3, 3),)))
    assert runner.cells[3] == [GARBAGE, GARBAGE]
    late = Row(0, "a", 1, 8)  # planned before the rejection was known: an upper bound
    assert told(runner.run(plan(late))) == [FIRST[2:3]]
    assert runner.cells[3][0] != GARBAGE


def test_an_empty_plan_still_tells_who_left() -> None:
    runner = prefilled()
    result = runner.run(Plan(2, NO_ROWS, NO_ROWS.count, released=(0,)))
    assert (result.ids.shape, result.count.shape) == ((0, 1), (0,))
    assert runner.tracks == {}


def test_a_lost_step_is_noted_and_computes_nothing() -> None:
    runner = oracle()
    runner.lose(plan(Row(0, "a", 5, 0), admitted=(enter(0, A, 0, 1),), grown=((0, 2, 2),)))
    assert runner.tracks[0].table == [0, 1, 2]
    assert (runner.computed, runner.tracks[0].position) == (0, 0)
    assert all(cell == -1 for block in runner.cells for cell in block)


# -- what is wrong does not -------------------------------------------------

STALE = "stale or foreign KV"


def test_a_block_that_was_never_written_is_noticed() -> None:
    with pytest.raises(AssertionError, match=f"'a' position 0, block 5: {STALE}"):
        oracle().run(plan(Row(0, "a", 1, 4), admitted=(enter(0, A, 5, 6, 7, cached=4),)))


def test_a_prefix_whose_step_was_lost_is_noticed() -> None:
    runner = oracle()
    runner.lose(plan(Row(0, "a", 5, 0), admitted=(enter(0, A, 0, 1, 2),)))
    b = ask("b", 1, 2, 9)
    with pytest.raises(AssertionError, match=f"'b' position 0, block 0: {STALE}"):
        runner.run(plan(Row(1, "b", 1, 2), admitted=(enter(1, b, 0, 3, cached=2),)))


def test_a_block_that_is_reused_too_early_is_noticed() -> None:
    runner = prefilled()
    runner.run(plan(Row(1, "b", 1, 0), admitted=(enter(1, ask("b", 9), 1),)))  # still read by a
    with pytest.raises(AssertionError, match=f"'a' position 2, block 1: {STALE}"):
        runner.run(plan(Row(0, "a", 1, 5)))


@pytest.mark.parametrize(
    "fields",
    [{"cache_salt": "pepper"}, {"adapter": "lora"}, {"images": (ImageInput("cat", 0, 1),)}],
)
def test_the_prefix_of_another_salt_adapter_or_image_is_noticed(fields: dict[str, Any]) -> None:
    runner = prefilled()
    stranger = ask("s", 1, 2, 3, 4, 5, **fields)
    with pytest.raises(AssertionError, match=f"'s' position 0, block 0: {STALE}"):
        runner.run(plan(Row(1, "s", 1, 4), admitted=(enter(1, stranger, 0, 1, 3, cached=4),)))


def test_the_same_image_at_another_place_is_noticed() -> None:
    runner = oracle()
    one, other = (
        ask(name, 1, 1, 1, images=(ImageInput("cat", at, 1),)) for name, at in (("o", 0), ("p", 1))
    )
    runner.run(plan(Row(0, "o", 3, 0), admitted=(enter(0, one, 0, 1),), **embedded(0)))
    with pytest.raises(AssertionError, match=f"'p' position 0, block 0: {STALE}"):
        runner.run(plan(Row(1, "p", 1, 2), admitted=(enter(1, other, 0, 2, cached=2),)))


def embedded(*places: int, encoded: tuple[str, ...] = ("cat",)) -> dict[str, Any]:
    """The first image of slot 0 is encoded into the first rows; places of the first row read it."""
    rows = np.arange(len(places), dtype=np.int32)
    encode = tuple(Encoding(0, image, name, rows) for image, name in enumerate(encoded))
    read = Embedded(np.zeros(len(places), np.intp), np.array(places, np.int32), rows)
    return {"encode": encode, "embedded": read}


def test_an_image_without_its_embedding_is_noticed() -> None:
    asked = ask("o", 1, 2, 3, images=(ImageInput("cat", 1, 2),))
    new, row = (enter(0, asked, 0, 1),), Row(0, "o", 3, 0)
    oracle().run(plan(row, admitted=new, **embedded(1, 2)))
    for wrong in (embedded(), embedded(0, 1), embedded(2, 1), embedded(1, 2, encoded=())):
        with pytest.raises(AssertionError, match=r"embedding|another image"):
            oracle().run(plan(row, admitted=new, **wrong))
    with pytest.raises(AssertionError, match="another image"):
        oracle().run(plan(row, admitted=new, **embedded(1, 2, encoded=("dog",))))


def test_what_a_lost_step_was_to_encode_is_not_there() -> None:
    asked, runner = ask("o", 1, 2, 3, images=(ImageInput("cat", 0, 1),)), oracle()
    new, row = (enter(0, asked, 0, 1),), Row(0, "o", 3, 0)
    runner.lose(plan(row, admitted=new, **embedded(0)))
    with pytest.raises(AssertionError, match="position 0 has the embedding"):
        runner.run(plan(row, **embedded(0, encoded=())))


def test_an_embedding_for_a_position_that_is_not_computed_is_noticed() -> None:
    asked = ask("o", 1, 2, 3, images=(ImageInput("cat", 1, 2),))
    row = Row(0, "o", 2, 0, samples=False)
    with pytest.raises(AssertionError, match="do not compute"):
        oracle().run(plan(row, admitted=(enter(0, asked, 0, 1),), **embedded(1, 2)))


def test_the_same_tokens_behind_another_prefix_are_noticed() -> None:
    runner = prefilled()
    b = ask("b", 7, 7, 3, 4, 9)
    runner.run(plan(Row(1, "b", 2, 0, samples=False), admitted=(enter(1, b, 3, 4, 5),)))
    runner.tracks.pop(1)
    with pytest.raises(AssertionError, match=f"'b' position 2, block 1: {STALE}"):
        runner.run(plan(Row(1, "b", 1, 4), admitted=(enter(1, b, 3, 1, 5, cached=4),)))


def test_a_wrong_table_entry_is_noticed() -> None:
    wrong = enter(1, ask("b", 1, 2, 3, 4, 6), 0, 0, 3, cached=4)
    with pytest.raises(AssertionError, match=f"'b' position 2, block 0: {STALE}"):
        prefilled().run(plan(Row(1, "b", 1, 4), admitted=(wrong,)))


def test_a_block_that_grows_into_the_table_of_two_is_noticed() -> None:
    runner = oracle()
    both = (enter(0, ask("a", 1, 2), 0), enter(1, ask("b", 5, 6), 1))
    runner.run(plan(Row(0, "a", 2, 0), Row(1, "b", 2, 0), admitted=both))
    grow = plan(Row(0, "a", 1, 2), Row(1, "b", 1, 2), grown=((0, 1, 4), (1, 1, 4)))
    read = plan(Row(0, "a", 1, 3))
    with pytest.raises(AssertionError, match=f"'a' position 2, block 4: {STALE}"):  # noqa: PT012
        runner.run(grow)
        runner.run(read)


def test_a_position_without_a_block_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' has no block for position 4"):
        oracle().run(plan(Row(0, "a", 5, 0), admitted=(enter(0, A, 0, 1),)))


def test_a_gap_in_the_table_is_noticed() -> None:
    one = enter(0, A, 0)
    with pytest.raises(AssertionError, match="'a' has no block for position 2"):
        oracle().run(plan(Row(0, "a", 5, 0), admitted=(one,), grown=((0, 2, 3),)))


def test_a_table_entry_that_is_written_twice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' maps block 1 twice"):
        prefilled().run(plan(Row(0, "a", 1, 5), grown=((0, 1, 6),)))


def test_a_row_that_samples_before_its_prompt_is_computed_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' samples early"):
        oracle().run(plan(Row(0, "a", 4, 0, samples=True), admitted=(enter(0, A, 0, 1, 2),)))


def test_a_row_that_is_complete_and_does_not_sample_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' samples"):
        oracle().run(plan(Row(0, "a", 5, 0, samples=False), admitted=(enter(0, A, 0, 1, 2),)))


def test_a_row_longer_than_what_is_known_is_noticed() -> None:
    with pytest.raises((AssertionError, IndexError)):
        oracle().run(plan(Row(0, "a", 6, 0), admitted=(enter(0, A, 0, 1, 2),)))


def test_a_row_that_starts_before_its_position_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' starts at the wrong"):
        prefilled().run(plan(Row(0, "a", 1, 4)))


def test_a_row_of_nothing_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' drafts without computing anything"):
        prefilled().run(plan(Row(0, "a", 0, 5)))


def test_a_row_of_drafts_alone_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' drafts without computing anything"):
        prefilled().run(plan(Row(0, "a", 2, 5, drafts=2)))


def test_drafts_before_the_first_sample_are_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' drafts before its first sample"):
        oracle().run(plan(Row(0, "a", 5, 0, drafts=1), admitted=(enter(0, A, 0, 1, 2),)))


def test_the_garbage_of_rejected_drafts_is_noticed_by_whoever_reads_it() -> None:
    runner = prefilled(accept=0.0)
    runner.run(plan(Row(0, "a", 3, 5, drafts=2), grown=((0, 3, 3),)))
    heir = enter(1, A, 0, 1, 2, 3, 4, cached=8, more=FIRST[:4])  # as if all had been accepted
    with pytest.raises(AssertionError, match=f"'a' position 6, block 3: {STALE}"):
        runner.run(plan(Row(1, "a", 1, 8), admitted=(heir,)))


def test_drafts_without_room_for_their_garbage_are_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' has no block for position 6"):
        prefilled(accept=0.0).run(plan(Row(0, "a", 3, 5, drafts=2)))


def test_a_release_that_was_missed_is_noticed() -> None:
    with pytest.raises(AssertionError, match="slot 0 was not released"):
        prefilled().run(plan(Row(0, "b", 1, 0), admitted=(enter(0, ask("b", 9), 4),)))


def test_a_row_for_someone_else_is_noticed() -> None:
    with pytest.raises(AssertionError, match="slot 0 has another request"):
        prefilled().run(plan(Row(0, "b", 1, 5)))


def test_a_row_of_a_slot_that_was_released_is_noticed() -> None:
    with pytest.raises((AssertionError, KeyError)):
        prefilled().run(plan(Row(0, "a", 1, 5), released=(0,)))


# -- the scheduler under its eyes -------------------------------------------


def life_of(spoil: Callable[[Plan], None] | None = None) -> list[int]:
    """The outputs of one request, with every plan spoiled a little before it is run."""
    scheduler = Scheduler.create(
        max_num_seqs=2, max_num_batched_tokens=4, max_model_len=16, num_blocks=8, block_size=SIZE
    )
    runner = oracle()
    scheduler.submit(ask("a", 1, 2, 3, 4, 5, max_tokens=6), now=0.0)
    got: list[int] = []
    while not scheduler.idle:
        made = scheduler.plan(0.0)
        if spoil:
            spoil(made)
        got += (
            scheduler.commit(made, runner.run(made), 0.0).to_dict().get("a", {}).get("tokens", [])
        )
    return got


def test_the_scheduler_gives_the_reference_step_by_step() -> None:
    assert life_of() == FIRST[:6]


def lead_astray(made: Plan) -> None:
    if len(made.grown.block):
        made.grown.block[0] = 0  # where the prompt begins


def start_earlier(made: Plan) -> None:
    made.start[made.start > 0] -= 1


def compute_less(made: Plan) -> None:
    made.rows.count[made.rows.count > 1] -= 1


@pytest.mark.parametrize("spoil", [lead_astray, start_earlier, compute_less])
def test_a_plan_that_was_tampered_with_is_noticed(spoil: Callable[[Plan], None]) -> None:
    with pytest.raises(AssertionError):
        life_of(spoil)


def test_a_block_that_stands_twice_in_a_table_is_noticed_at_once() -> None:
    with pytest.raises(AssertionError, match=STALE):
        oracle().run(plan(Row(0, "a", 5, 0), admitted=(enter(0, A, 1, 1, 2),)))


def test_a_block_that_two_rows_write_is_noticed_at_once() -> None:
    both = (enter(0, ask("a", 1, 2), 3), enter(1, ask("b", 5, 6), 3))
    made = plan(Row(0, "a", 2, 0), Row(1, "b", 2, 0), admitted=both)
    with pytest.raises(AssertionError, match=STALE):
        oracle().run(made)


def test_a_prefix_computed_by_another_in_a_later_row_of_the_step_may_be_read() -> None:
    b = ask("b", 1, 2, 3, 4, 6)
    both = (enter(0, A, 0, 1, 2), enter(1, b, 0, 1, 3, cached=4))
    result = oracle().run(plan(Row(1, "b", 1, 4), Row(0, "a", 5, 0), admitted=both))
    assert told(result) == [reference(b, VOCAB, MODEL_LENGTH)[0][:1], FIRST[:1]]


def test_a_row_that_starts_after_its_position_is_noticed() -> None:
    with pytest.raises(AssertionError, match="'a' starts"):
        prefilled().run(plan(Row(0, "a", 1, 6)))


def test_what_comes_before_an_image_may_be_shared() -> None:
    pictured = ask("p", 1, 2, 3, 4, 5, images=(ImageInput("cat", 4, 1),))
    admitted = enter(1, pictured, 0, 1, 3, cached=4)
    cat = Encoding(1, 0, "cat", np.array([0], np.int32))
    read = Embedded(np.zeros(1, np.intp), np.zeros(1, np.int32), np.zeros(1, np.int32))
    row = Row(1, "p", 1, 4)
    prefilled().run(plan(row, admitted=(admitted,), encode=(cat,), embedded=read))


# -- copies ------------------------------------------------------------------


def swapping(lag: int = 0) -> OracleRunner:
    """An oracle with a host, that has computed the five tokens of `a` in blocks 0, 1 and 2."""
    runner = OracleRunner(8, SIZE, VOCAB, host_blocks=4, lag=lag)
    runner.run(plan(Row(0, "a", 5, 0), admitted=(enter(0, A, 0, 1, 2),)))
    return runner


def forked(*copies: tuple[int, int], blocks: tuple[int, ...] = (0, 1, 3)) -> Plan:
    """A second sequence that begins with the first five tokens of `a`."""
    b = ask("b", 1, 2, 3, 4, 5, 6)
    return plan(Row(1, "b", 1, 5), admitted=(enter(1, b, *blocks, cached=5),), copies=copies)


def test_a_fork_reads_what_it_shares_and_what_was_copied() -> None:
    made = prefilled().run(forked((2, 3)))
    assert told(made) == [reference(ask("b", 1, 2, 3, 4, 5, 6), VOCAB, MODEL_LENGTH)[0][:1]]


def test_a_fork_writes_to_its_own_copy() -> None:
    runner = prefilled()
    runner.run(forked((2, 3)))
    assert told(runner.run(plan(Row(0, "a", 1, 5)))) == [FIRST[1:2]]


@pytest.mark.parametrize("copies", [(), ((1, 3),), ((3, 2),), ((2, 4),)])
def test_a_copy_that_is_missing_or_wrong_is_noticed_at_its_cell(copies: Any) -> None:
    with pytest.raises(AssertionError, match=f"'b' position 4, block 3: {STALE}"):
        prefilled().run(forked(*copies))


def test_a_fork_that_writes_into_the_block_of_another_is_noticed() -> None:
    runner = prefilled()
    runner.run(forked(blocks=(0, 1, 2)))
    with pytest.raises(AssertionError, match=f"'b' position 5, block 2: {STALE}"):
        runner.run(plan(Row(0, "a", 1, 5), Row(1, "b", 1, 6), grown=((1, 3, 3),)))


def test_copies_are_done_in_their_order_and_before_anything_is_written() -> None:
    runner = prefilled()
    before = list(runner.cells[2])
    runner.run(plan(Row(0, "a", 1, 5), copies=((2, 3), (3, 4))))
    assert runner.cells[3] == runner.cells[4] == before
    assert runner.cells[2] != before


# -- the host ----------------------------------------------------------------


def gone(*moves: tuple[int, int], step: int = 2) -> Plan:
    made = Plan(step, NO_ROWS, NO_ROWS.count, released=(0,), swap_out=moves)
    assert not made.empty
    return made


def back(*moves: tuple[int, int], blocks: tuple[int, ...] = (4, 5, 6)) -> Plan:
    """`a` returns to other blocks, with the first five of the six tokens it knows."""
    entered = enter(3, A, *blocks, cached=5, more=FIRST[:1])
    return plan(Row(3, "a", 1, 5), admitted=(entered,), swap_in=moves)


OUT, IN = ((0, 0), (1, 1), (2, 2)), ((0, 4), (1, 5), (2, 6))


def test_what_was_swapped_out_and_in_again_is_as_it_was() -> None:
    runner = swapping()
    runner.run(gone(*OUT))
    for block in range(3):
        runner.cells[block] = [GARBAGE, GARBAGE]
    assert told(runner.run(back(*IN))) == [FIRST[1:2]]


def test_a_swap_in_before_its_swap_out_is_noticed() -> None:
    with pytest.raises(AssertionError, match="host block 0 is read before it was written"):
        swapping().run(back(*IN))


def test_a_swap_in_while_the_copy_is_still_to_be_done_is_noticed() -> None:
    runner = swapping(lag=2)
    runner.run(gone(*OUT))
    with pytest.raises(AssertionError, match="host block 0 is read before it was written"):
        runner.run(back(*IN))


def test_a_copy_is_done_when_its_step_is_settled() -> None:
    runner = swapping(lag=5)
    runner.run(gone(*OUT))
    runner.settle(1)
    assert runner.host == [None] * 4
    runner.settle(2)
    assert runner.host[:3] == runner.cells[:3]
    assert told(runner.run(back(*IN))) == [FIRST[1:2]]


def test_what_is_swapped_out_again_is_not_what_was_there_before() -> None:
    """A host block whose new copy is still to be done has nothing to read."""
    runner = swapping(lag=1)
    runner.run(gone(*OUT))
    runner.settle(2)
    runner.run(gone((3, 0), step=3))
    with pytest.raises(AssertionError, match="host block 0 is read before it was written"):
        runner.run(back(*IN))


def test_a_host_block_that_is_overwritten_while_a_step_reads_it_is_noticed() -> None:
    runner = swapping(lag=1)
    runner.run(gone(*OUT))
    runner.settle(2)
    runner.run(back(*IN))
    with pytest.raises(AssertionError, match="host block 0 is overwritten while a step reads it"):
        runner.run(gone((3, 0), step=4))


def test_a_host_block_may_be_overwritten_when_the_step_that_reads_it_is_settled() -> None:
    runner = swapping(lag=1)
    runner.run(gone(*OUT))
    runner.settle(2)
    plan = back(*IN)
    runner.run(plan)
    runner.settle(plan.step)
    runner.run(gone((3, 0), step=plan.step + 1))
    runner.settle(plan.step + 1)
    assert runner.host[0] == runner.cells[3]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_block_that_is_reused_before_its_copy_ran_is_noticed_at_its_cell(lag: int) -> None:
    """In the step that copies it, or in the next one while that is still in flight."""
    runner = swapping(lag)
    b = ask("b", 7, 8)
    reuse = Row(1, "b", 2, 0), (enter(1, b, 1),)
    if lag == 0:
        runner.run(plan(reuse[0], admitted=reuse[1], released=(0,), swap_out=OUT))
    else:
        runner.run(gone(*OUT, step=1))
        runner.run(plan(reuse[0], admitted=reuse[1]))
    runner.settle(2)
    with pytest.raises(AssertionError, match=f"'a' position 2, block 5: {STALE}"):
        runner.run(back(*IN))


def test_a_block_that_comes_back_to_the_wrong_place_is_noticed() -> None:
    runner = swapping()
    runner.run(gone(*OUT))
    with pytest.raises(AssertionError, match=f"'a' position 0, block 4: {STALE}"):
        runner.run(back((1, 4), (0, 5), (2, 6)))


def test_a_block_that_is_forgotten_on_the_way_back_is_noticed() -> None:
    runner = swapping()
    runner.run(gone(*OUT))
    with pytest.raises(AssertionError, match=f"'a' position 2, block 5: {STALE}"):
        runner.run(back((0, 4), (2, 6)))


def test_a_lost_step_copies_nothing() -> None:
    runner = swapping()
    runner.lose(gone(*OUT))
    assert runner.host == [None] * 4
    runner.lose(forked((2, 3)))
    assert runner.cells[3] == [-1, -1]


# -- candidates and scores ---------------------------------------------------


def row_of(request: Request, child: int = -1) -> Row:
    return Row(0, request.id, 5, 0, child=child)


def test_nobody_is_told_scores_that_nobody_asked_for() -> None:
    result = oracle().run(plan(row_of(A), admitted=(enter(0, A, 0, 1, 2),)))
    assert (result.logprob, result.candidates) == (None, None)


def test_the_log_probability_is_that_of_the_token_sampled() -> None:
    request = ask("a", 1, 2, 3, 4, 5, best_of=2)
    new = enter(0, request.child(0), 0, 1, 2)
    result = oracle().run(plan(row_of(request, 0), admitted=(new,)))
    expected = logprobs(digest_of(request, []), VOCAB)[int(result.ids[0, 0])]
    assert result.logprob is not None
    assert result.logprob.tolist() == [[expected]]


def test_accepted_drafts_have_log_probabilities_of_their_own() -> None:
    request = ask("a", 1, 2, 3, 4, 5, best_of=2)
    runner = oracle(accept=1.0)
    runner.run(plan(row_of(request, 0), admitted=(enter(0, request.child(0), 0, 1, 2),)))
    result = runner.run(plan(Row(0, "a", 3, 5, drafts=2, child=0), grown=((0, 3, 3),)))
    ids: list[int] = result.ids[0].tolist()
    tokens = reference(request, VOCAB, MODEL_LENGTH)[0]
    assert ids == tokens[1:4]
    assert result.logprob is not None
    assert result.logprob[0].tolist() == [
        logprobs(digest_of(request, tokens[:count]), VOCAB)[tokens[count]] for count in (1, 2, 3)
    ]


def test_beams_are_told_the_likeliest_and_sample_nothing_of_their_own() -> None:
    request = ask("a", 1, 2, 3, 4, 5, beam_width=3)
    new = enter(0, request.child(0), 0, 1, 2)
    runner = oracle()
    result = runner.run(plan(row_of(request, 0), admitted=(new,)))
    best = likeliest(digest_of(request, []), VOCAB, 6)
    assert result.candidates is not None
    assert result.candidates.ids.tolist() == [[token for token, _ in best]]
    assert result.candidates.logprob.tolist() == [[value for _, value in best]]
    assert len(runner.tracks[0].tokens) == 5


def test_a_beam_goes_on_with_the_token_that_the_host_chose() -> None:
    request = ask("a", 1, 2, 3, 4, 5, beam_width=3)
    runner = oracle()
    runner.run(plan(row_of(request, 0), admitted=(enter(0, request.child(0), 0, 1, 2),)))
    result = runner.run(plan(Row(0, "a", 1, 5, child=0), chosen=((0, (77,)),)))
    best = likeliest(digest_of(request, [77]), VOCAB, 6)
    assert result.candidates is not None
    assert result.candidates.ids[0].tolist() == [token for token, _ in best]


def test_a_vocabulary_smaller_than_the_candidates_leaves_the_rest_empty() -> None:
    request = ask("a", 1, 2, 3, 4, 5, beam_width=3)
    runner = OracleRunner(8, SIZE, vocab=4)
    result = runner.run(plan(row_of(request, 0), admitted=(enter(0, request.child(0), 0, 1, 2),)))
    assert result.candidates is not None
    assert sorted(result.candidates.ids[0].tolist()) == [-1, -1, 0, 1, 2, 3]


def test_a_row_of_another_child_is_noticed() -> None:
    request = ask("a", 1, 2, 3, 4, 5, n=2)
    with pytest.raises(AssertionError, match="slot 0 has another request"):
        oracle().run(plan(row_of(request, 1), admitted=(enter(0, request.child(0), 0, 1, 2),)))


def test_a_spoiled_row_fails_with_all_that_read_it_and_sample() -> None:
    runner = OracleRunner(8, SIZE, VOCAB)
    a, b, c = ask("a", 1, 2, 3), ask("b", 1, 2, 4, 5, 6), ask("c", 7, 8)
    runner.spoiled = {"a"}
    result = runner.run(
        plan(
            Row(0, "a", 3, 0),
            Row(1, "b", 2, 2, samples=False),
            Row(2, "c", 2, 0),
            admitted=(
                enter(0, a, 0, 1),
                enter(1, b, 0, 2, 3, cached=2),
                enter(2, c, 4),
            ),
        )
    )
    (failed,) = result.failed
    assert (failed.row, failed.reason) == (0, "the row of 'a' has no numbers")
    assert result.count.tolist() == [0, 0, 1]
    assert [spoil.slot for spoil in runner.spoils] == [0, 1]
    assert runner.spoil_in(2) == runner.spoils[1]
    assert runner.spoil_in(4) is None
    assert not runner.spoiled
    later = runner.run(plan(Row(1, "b", 1, 4), Row(2, "c", 1, 2), grown=((2, 1, 5),)))
    assert [one.row for one in later.failed] == [0]
    assert later.count.tolist() == [0, 1]
