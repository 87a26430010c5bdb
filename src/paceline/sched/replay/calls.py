"""Records of the calls that carry arrays: `submit` and `commit`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from json import loads
from struct import Struct
from typing import Any

import numpy as np

from paceline.core.arrays import F32, I32, Bool
from paceline.core.capabilities import StepTimes
from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.multimodal import ImageInput
from paceline.core.plan import Candidates, Failed, Forced, StepResult
from paceline.core.request import Request
from paceline.core.sampling import GREEDY, Sampling
from paceline.sched.replay.records import (
    TOKEN,
    RecordKind,
    arguments,
    column,
    record,
    tail_of,
    values_of,
    with_tail,
)

COMMITTED = Struct("<QdI")  # step, time, rows of the plan
SCORE = np.dtype("<f4")
ONE = np.ones(1, TOKEN).tobytes()
UNRECORDED = ("prompt", "handle", "data_parallel_rank")  # the last two affect no decision
REQUEST_FIELDS = [(one.name, one.default) for one in fields(Request) if one.name not in UNRECORDED]


# -- requests ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `submit`."""

    request: Request
    now: float
    parked: str

    def encoded(self) -> bytes:
        """The fields that are not at their default, and the prompt."""
        request = self.request
        given = {name: getattr(request, name) for name, _ in REQUEST_FIELDS}
        prompt = column(request.prompt)
        try:
            kept = {name: given[name] for name, default in REQUEST_FIELDS if given[name] != default}
            return record(RecordKind.SUBMIT, with_tail((kept, self.now, self.parked), prompt))
        except (TypeError, ValueError) as error:
            raise RequestError(f"request {request.id!r}: {error}") from None

    @staticmethod
    def decoded(payload: bytes) -> "Submission":
        kept, now, parked = values_of(payload)
        images = kept.pop("items", ()) or kept.get("images", ())
        kept["images"] = tuple(ImageInput(*one) for one in images)
        kept["sampling"] = sampling_of(kept.get("sampling", {}))
        if "constraint" in kept:
            kept["constraint"] = constraint_of(*kept["constraint"])
        generated = kept.get("generated", ())
        kept["generated"] = tuple(None if one is None else tuple(one) for one in generated)
        prompt = np.frombuffer(tail_of(payload), TOKEN)
        return Submission(Request(prompt=prompt, **kept), now, parked)


def constraint_of(*kept: Any) -> Constraint:
    """A constraint from its fields in order; earlier versions lack the last ones."""
    found = Constraint(*kept)
    return replace(found, banned=tuple(map(tuple, found.banned)))


def sampling_of(kept: dict[str, Any]) -> Sampling:
    """Sampling settings from those that differ from greedy sampling."""
    if not kept:
        return GREEDY
    if "logit_bias" in kept:
        kept["logit_bias"] = {int(token): bias for token, bias in kept["logit_bias"]}
    return replace(GREEDY, **kept)


# -- results ----------------------------------------------------------------
#
# All parts of a result that a scheduler reads are recorded. Parts that most results lack have
# separate records before the COMMIT: SCORES, FAILED, DRAFTS and FORCED. A new part that affects a
# decision needs another one.


@dataclass(frozen=True, slots=True)
class Commitment:
    """The arguments of `commit`; the step stands for the plan."""

    step: int
    now: float
    rows: int  # of the plan
    result: StepResult

    def encoded(self) -> bytes:
        """The sampled ids, and the count of each row unless all counts are one."""
        ids, count = np.asarray(self.result.ids, TOKEN), np.asarray(self.result.count, TOKEN)
        fits = well_formed(ids.shape, count.shape)
        if fits and ids.shape[1] and count.tobytes() == ONE * len(ids):
            head = COMMITTED.pack(self.step, self.now, self.rows)
            return record(RecordKind.COMMIT_ONES, head + ids[:, :1].tobytes())
        small = count.astype(np.uint8)
        counts = small if (small == count).all() else count
        kept = ids[sampled(count, ids.shape[1])] if fits else ids
        head = (self.step, self.now, self.rows, ids.shape, count.shape, counts.itemsize)
        return record(RecordKind.COMMIT, with_tail(head, counts.tobytes() + kept.tobytes()))

    @staticmethod
    def decoded_ones(payload: bytes) -> "Commitment":
        step, now, rows = COMMITTED.unpack_from(payload)
        ids = np.frombuffer(payload, TOKEN, offset=COMMITTED.size).reshape(-1, 1)
        return Commitment(step, now, rows, StepResult(ids, np.ones(len(ids), np.int32)))

    @staticmethod
    def decoded(payload: bytes) -> "Commitment":
        step, now, rows, ids_shape, count_shape, itemsize = values_of(payload)
        tail = tail_of(payload)
        entries = math.prod(count_shape)
        count = np.frombuffer(tail, np.uint8 if itemsize == 1 else TOKEN, entries)
        count = count.astype(np.int32).reshape(count_shape)
        kept = np.frombuffer(tail, TOKEN, offset=entries * itemsize)
        ids = np.full(ids_shape, -1, np.int32)
        if well_formed(ids_shape, count_shape):
            ids[sampled(count, ids_shape[1])] = kept
        else:
            ids[...] = kept.reshape(ids_shape)
        return Commitment(step, now, rows, StepResult(ids, count))


def well_formed(ids_shape: Sequence[int], count_shape: Sequence[int]) -> bool:
    """Does the result have a count for each row of ids? A scheduler refuses it otherwise."""
    return len(ids_shape) == len(("rows", "columns")) and list(count_shape) == [ids_shape[0]]


def sampled(count: I32, width: int) -> Bool:
    """A mask of the valid ids among `width` per row."""
    return np.arange(width) < count[:, None]


@dataclass(frozen=True, slots=True)
class ResultScores:
    """The scores in a result, for requests that return their best sequences."""

    logprob: F32 | None
    candidates: Candidates | None

    @staticmethod
    def of(result: StepResult) -> "ResultScores | None":
        if result.logprob is None and result.candidates is None:
            return None
        return ResultScores(result.logprob, result.candidates)

    def encoded(self) -> bytes:
        logprob, found = self.logprob, self.candidates
        shapes = (
            None if logprob is None else logprob.shape,
            None if found is None else found.ids.shape,
        )
        tail = b"" if logprob is None else column(logprob, SCORE)
        if found is not None:
            tail += column(found.ids) + column(found.logprob, SCORE)
        return record(RecordKind.SCORES, with_tail(shapes, tail))

    @staticmethod
    def decoded(payload: bytes) -> "ResultScores":
        shape, found_shape = values_of(payload)
        values = np.frombuffer(tail_of(payload), SCORE)
        first = math.prod(shape) if shape is not None else 0
        logprob = values[:first].reshape(shape) if shape is not None else None
        if found_shape is None:
            return ResultScores(logprob, None)
        ids, scores = np.split(values[first:], 2)
        found = Candidates(ids.view(TOKEN).reshape(found_shape), scores.reshape(found_shape))
        return ResultScores(logprob, found)

    def added_to(self, result: StepResult) -> StepResult:
        return StepResult(result.ids, result.count, self.logprob, self.candidates)


def failed_rows(failed: tuple[Failed, ...]) -> bytes:
    """The failed rows of a result."""
    return record(RecordKind.FAILED, arguments(*((one.row, one.reason) for one in failed)))


def failed_of(payload: bytes) -> tuple[Failed, ...]:
    return tuple(Failed(row, reason) for row, reason in loads(payload))


def forced_record(forced: tuple[Forced, ...]) -> bytes:
    return record(RecordKind.FORCED, arguments(*((one.row, one.tokens) for one in forced)))


def forced_of(payload: bytes) -> tuple[Forced, ...]:
    return tuple(Forced(row, tuple(tokens)) for row, tokens in loads(payload))


def drafts_record(drafts: I32) -> bytes:
    """The drafts that a device computed, by row."""
    return record(RecordKind.DRAFTS, column(drafts))


def drafts_of(payload: bytes) -> I32:
    return np.frombuffer(payload, TOKEN).astype(np.int32)


def step_times_record(times: StepTimes) -> bytes:
    return record(
        RecordKind.STEP_TIMES, arguments(times.plain, times.drafted, times.least, times.sizes)
    )


def step_times_of(payload: bytes) -> StepTimes:
    plain, drafted, least, *sizes = loads(payload)
    points = (tuple((size, taken) for size, taken in one) for one in (plain, drafted, least))
    return StepTimes(*points, sizes=tuple(*sizes))
