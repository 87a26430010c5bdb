"""Requests and results survive as records, and take little more than they hold."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import ImageInput, Request, StepResult
from paceline.core.constraint import Constraint
from paceline.core.plan import Candidates
from paceline.core.sampling import Sampling
from paceline.sched.replay.calls import UNRECORDED, Commitment, ResultScores, Submission
from paceline.sched.replay.reader import RecordingEnd, next_record
from paceline.sched.replay.records import (
    CHECKSUM,
    HEAD,
    RecordKind,
    tail_of,
    values_of,
    with_tail,
)


def ask(name: str = "a", tokens: int = 3, **other: Any) -> Request:
    return Request(id=name, prompt=np.arange(tokens), **other)


def test_a_mixed_step_takes_a_byte_for_each_count(tmp_path: Path) -> None:
    rows = 200
    ids = np.zeros((rows, 4), np.int32)
    count = np.arange(rows, dtype=np.int32) % 5
    record = Commitment(12, 3.5, rows, StepResult(ids, count)).encoded()
    assert len(record) < rows + 4 * int(count.sum()) + 80


def test_a_request_takes_what_it_says(tmp_path: Path) -> None:
    record = Submission(ask("some-request-id", tokens=1000, max_tokens=64), 12.5, "").encoded()
    assert len(record) < 4 * 1000 + 80


def payload(tmp_path: Path, record: bytes) -> bytes:
    (tmp_path / "one").write_bytes(record)
    with (tmp_path / "one").open("rb") as file:
        found = next_record(file, len(record))
    assert not isinstance(found, RecordingEnd)
    return found.payload


def test_every_field_of_a_request_survives(tmp_path: Path) -> None:
    full = Request(
        id="\ud800 ü",
        prompt=np.array([2**31 - 1, 0, 7]),
        max_tokens=np.int64(9),  # pyright: ignore[reportArgumentType]
        min_tokens=2,
        ignore_eos=np.True_,  # pyright: ignore[reportArgumentType]
        eos_token_ids=(1, 2),
        stop_token_ids=(3,),
        seed=2**63,
        priority=-4,
        arrival=0.1 + 0.2,
        tenant="t",
        origin="body 1",
        session="chat",
        deadline=float("inf"),
        token_deadline=np.float32(0.1),  # pyright: ignore[reportArgumentType]
        cache_salt="s",
        adapter="l",
        drafts=3,
        images=(ImageInput("image", 0, 2), ImageInput("sound", 2, 1)),
        n=2,
        best_of=4,
        beam_width=4,
        length_penalty=np.float32(0.3),  # pyright: ignore[reportArgumentType]
        early_stopping="never",
        sampling=Sampling(temperature=0.7, top_k=5, logit_bias={3: 1.5}, allowed_token_ids=(2, 3)),
        constraint=Constraint.json(True, any_whitespace=False)
        .after_reasoning("<a>", "<b>")
        .within(7)
        .without(((1, 2), (3, 4, 5))),
        kv_transfer_params={"do_remote_prefill": True, "remote_block_ids": [1, 2]},
    )
    pooled = Request(id="e", prompt=[1, 2], max_tokens=1, pooling="mean", reads_cache=False)
    moved = Request(id="m", prompt=[1, 2], n=2, generated=((7, 8), None))
    for request in (full, pooled, moved, ask()):
        made = Submission(request, 1e-9, "grammar")
        again = Submission.decoded(payload(tmp_path, made.encoded()))
        assert (again.now, again.parked) == (1e-9, "grammar")
        for field in fields(Request):
            one, other = getattr(request, field.name), getattr(again.request, field.name)
            assert np.array_equal(one, other) if field.name == "prompt" else one == other
    recorded = [field for field in fields(Request)[1:] if field.name not in UNRECORDED]
    for field in recorded:
        given = [getattr(one, field.name) for one in (full, pooled, moved)]
        assert any(one != field.default for one in given), field.name


def test_submissions_of_earlier_formats_name_images_items(tmp_path: Path) -> None:
    asked = ask(images=(ImageInput("cat", 0, 1),))
    content = payload(tmp_path, Submission(asked, 0.0, "").encoded())
    kept, now, parked = values_of(content)
    kept["items"] = kept.pop("images")
    earlier = with_tail((kept, now, parked), tail_of(content))
    assert Submission.decoded(earlier).request.images == asked.images


def test_every_field_of_a_result_that_decides_something_is_recorded() -> None:
    """A scheduler reads neither `prompt` nor `pooled`; a field that it reads gets a record in
    `calls.py`."""
    recorded = {"ids", "count", "logprob", "candidates", "failed", "computed_drafts", "forced"}
    assert {field.name for field in fields(StepResult)} == recorded | {"prompt", "pooled"}


@pytest.mark.parametrize(
    ("ids", "count"),
    [
        (np.array([[4], [5]]), np.array([1, 1])),
        (np.array([[4, 9], [5, 9]]), np.array([1, 1])),
        (np.array([[4, 8], [5, 9]]), np.array([2, 0])),
        (np.array([[4, 8], [5, 9]]), np.array([-1, 300])),
        (np.array([[4], [5]]), np.array([1, 1, 1])),
        (np.array([[4], [5]]), np.array([[1], [1]])),
        (np.array([4, 5]), np.array([1, 1])),
        (np.zeros((2, 0)), np.array([1, 1])),
        (np.zeros((0, 1)), np.zeros(0)),
        (np.zeros(()), np.zeros(())),
    ],
)
def test_every_result_survives_as_far_as_it_counts(ids: Any, count: Any, tmp_path: Path) -> None:
    made = Commitment(2**40, 0.3, 2, StepResult(ids.astype(np.int32), count.astype(np.int32)))
    (tmp_path / "one").write_bytes(made.encoded())
    with (tmp_path / "one").open("rb") as file:
        found = next_record(file, 1 << 20)
    assert not isinstance(found, RecordingEnd)
    ones = found.kind is RecordKind.COMMIT_ONES
    again = (Commitment.decoded_ones if ones else Commitment.decoded)(found.payload)
    assert (again.step, again.now, again.rows) == (2**40, 0.3, 2)
    assert np.array_equal(again.result.count, count)
    if ids.ndim == 2 and count.shape == (len(ids),):
        for row, number in enumerate(count.tolist()):
            kept = again.result.ids[row, : max(number, 0)].tolist()
            assert kept == ids[row, : max(number, 0)].tolist()
    else:
        assert np.array_equal(again.result.ids, ids)


LOGPROBS = np.array([[-0.5, -1.5], [-2.5, -3.5]], np.float32)


CANDIDATES = Candidates(
    np.array([[4, 5, -1], [6, 7, 8]], np.int32),
    np.array([[-0.25, -0.75, -np.inf], [-1.25, -1.75, -2.25]], np.float32),
)


@pytest.mark.parametrize("logprob", [LOGPROBS, LOGPROBS[:, :1], None])
@pytest.mark.parametrize("candidates", [CANDIDATES, None])
def test_all_that_a_result_says_beside_the_tokens_survives(
    logprob: Any, candidates: Any, tmp_path: Path
) -> None:
    ids, count = np.zeros((2, 2), np.int32), np.ones(2, np.int32)
    said = ResultScores.of(StepResult(ids, count, logprob, candidates))
    if said is None:
        assert logprob is candidates is None
        return
    again = ResultScores.decoded(payload(tmp_path, said.encoded())).added_to(StepResult(ids, count))
    assert (again.ids is ids, again.count is count) == (True, True)
    assert np.array_equal(again.logprob, logprob) if logprob is not None else not again.logprob
    if candidates is None:
        assert again.candidates is None
    else:
        assert again.candidates is not None
        assert np.array_equal(again.candidates.ids, candidates.ids)
        assert np.array_equal(again.candidates.logprob, candidates.logprob)


def test_what_is_said_is_recorded_even_if_it_is_nothing() -> None:
    asked = ask("a", 3, sampling=Sampling(temperature=0.0, logprobs=0))
    payload = Submission(asked, 0.0, "").encoded()[HEAD.size + CHECKSUM.size :]
    assert Submission.decoded(payload).request.sampling == asked.sampling
