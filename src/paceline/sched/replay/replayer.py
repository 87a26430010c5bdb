"""Make the calls of a recording again, on a scheduler of its own, and compare every plan."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from io import BufferedReader
from json import loads
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import PacelineError
from paceline.core.plan import Failed, Pairs, Plan, Rows
from paceline.sched.replay.format import (
    CHECKSUM,
    FORMAT_NUMBER,
    HEAD,
    MAGIC,
    PART_BYTES,
    PARTS,
    READABLE,
    STEP,
    TIME,
    Commitment,
    Fingerprint,
    Kind,
    Preamble,
    RecordingError,
    Scores,
    Submission,
    checksum,
    failed_of,
)
from paceline.sched.scheduler import Scheduler
from paceline.sched.swapping import Rates

KINDS = {kind.value: kind for kind in Kind}
NAMED = 4  # requests that a description of a plan names
SEARCHED = 1 << 20  # bytes behind a record that claims too much, in which others may be


class Ending(Enum):
    """How the readable part of a recording ends."""

    UNREAD = "it was not read to its end"
    CLOSED = "it is complete"
    FULL = "its limit was reached, and the run went on unrecorded"
    OPEN = "it has no end: its writer was killed, or still writes"
    CUT = "it ends inside a record: its writer was killed, or the file was cut or damaged"
    DAMAGED = "a record is damaged, and what follows it cannot be read"


@dataclass(frozen=True, slots=True)
class Record:
    """One call, or what came of the one before."""

    kind: Kind
    payload: bytes


def next_record(file: BufferedReader, left: int) -> Record | Ending:
    """The record at the file's position, if a whole one is among the `left` bytes."""
    head = file.read(HEAD.size + CHECKSUM.size)
    if not head:
        return Ending.OPEN
    if len(head) < HEAD.size + CHECKSUM.size:
        return Ending.CUT
    length, kind = HEAD.unpack_from(head)
    if len(head) + length > left:
        return torn(head + file.read(max(min(left, SEARCHED) - len(head), 0)))
    payload = file.read(length)
    if CHECKSUM.unpack_from(head, HEAD.size) != (checksum(head[: HEAD.size], payload),):
        return Ending.DAMAGED
    return Record(KINDS[kind], payload) if kind in KINDS else Ending.DAMAGED


def torn(rest: bytes) -> Ending:
    """Why a record claims more bytes than are left. Behind one that was cut there is nothing."""
    follows = any(holds_record(rest, place) for place in range(1, len(rest)))
    return Ending.DAMAGED if follows else Ending.CUT


def holds_record(content: bytes, place: int) -> bool:
    """Is there a whole and sound record?"""
    begin = place + HEAD.size + CHECKSUM.size
    if begin > len(content):
        return False
    length, kind = HEAD.unpack_from(content, place)
    if kind not in KINDS or begin + length > len(content):
        return False
    head, payload = content[place : place + HEAD.size], content[begin : begin + length]
    return CHECKSUM.unpack_from(content, place + HEAD.size) == (checksum(head, payload),)


class Reader:
    """Yields the whole records of a file in order; then `ending` says why no more came.

    `read_bytes` of `size_bytes` were read and found sound.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.ending = Ending.UNREAD
        self.size_bytes = self.read_bytes = 0
        with self.path.open("rb") as file:
            self.preamble = self._preamble(file)
            self.read_bytes = file.tell()

    def _preamble(self, file: BufferedReader) -> Preamble:
        """The settings, or a RecordingError that says why they cannot be had."""
        if file.read(len(MAGIC)) != MAGIC:
            raise RecordingError(f"{self.path} is not a recording of a scheduler")
        number = file.read(FORMAT_NUMBER.size)
        if len(number) == FORMAT_NUMBER.size and FORMAT_NUMBER.unpack(number)[0] not in READABLE:
            raise RecordingError(
                f"{self.path} has format {FORMAT_NUMBER.unpack(number)[0]}; "
                f"this paceline reads formats {' and '.join(map(str, READABLE))}"
            )
        self.size_bytes = os.fstat(file.fileno()).st_size
        first = next_record(file, self.size_bytes - file.tell())
        if isinstance(first, Ending) or first.kind is not Kind.SETTINGS:
            raise RecordingError(f"{self.path} is damaged: its settings cannot be read")
        try:
            return Preamble.decoded(first.payload)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{self.path}: its settings do not fit here: {error}") from None

    def __iter__(self) -> Iterator[Record]:
        with self.path.open("rb") as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            file.seek(self.read_bytes)
            while True:
                found = next_record(file, self.size_bytes - self.read_bytes)
                if isinstance(found, Ending):
                    self.ending = found
                    return
                self.read_bytes = file.tell()
                if found.kind is Kind.ENDED:
                    self.ending = Ending.FULL if found.payload == b"full" else Ending.CLOSED
                    return
                yield found


# -- what a replay tells ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first thing that went another way than in the recording."""

    step: int
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.what}"


@dataclass(frozen=True, slots=True)
class Summary:
    """What was replayed. Plans beyond `verified` had no digest in the file."""

    steps: int
    verified: int  # plans that were compared and identical
    requests: int
    refused: int  # calls that raised an error, then and now
    tokens: int  # sampled
    preemptions: int


DIFFERENCES = {
    "rows": "who computes how much",
    "positions": "where the rows start",
    "blocks": "the blocks handed out",
    "changes": "who came, left, was preempted or ended",
}


def differences(recorded: bytes, replayed: bytes) -> str:
    """The parts in which two fingerprints differ, in words."""
    places = [number * PART_BYTES for number in range(len(PARTS))]
    differing = [
        DIFFERENCES[name]
        for name, place in zip(PARTS, places, strict=True)
        if recorded[place : place + PART_BYTES] != replayed[place : place + PART_BYTES]
    ]
    return " and in ".join(differing)


def brief(plan: Plan) -> str:
    """A plan in one sentence."""
    told = plan.to_dict()
    shares = [f"{name}: {count}" for name, count in told["tokens"].items()]
    parts = [f"{told['total']} positions in {len(shares)} rows ({listing(shares)})"]
    for change in ("new", "resumed", "preempted", "finished"):
        if told[change]:
            parts.append(f"{change} {listing(told[change])}")
    return ", ".join(parts)


def listing(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def stand_in(step: int, rows: int, copies: Pairs = ()) -> Plan:
    """A plan that is no longer in flight: of such, a scheduler reads only this much."""
    none, names = np.zeros(rows, np.int32), np.full(rows, "", object)
    slot, serial = none.astype(np.intp), none.astype(np.int64)
    told = none.astype(np.bool_)
    return Plan(step, Rows(slot, none, serial, names, none, none, none, told), none, copies=copies)


# -- the replay -------------------------------------------------------------


class Replay:
    """The run of a recording, made again.

    While `divergence` is None, every plan so far whose digest is in the file came out
    identical, bit for bit. `scheduler` is in the state that the recorded one was in
    after the last call that was made.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.reader = Reader(path)
        try:
            self.scheduler = Scheduler(self.reader.preamble.config)
        except PacelineError as error:
            raise RecordingError(f"{path}: its settings do not fit here: {error}") from None
        self.divergence: Divergence | None = None
        self._fingerprint = Fingerprint()
        self._plan: Plan | None = None  # the latest, until it is compared
        self._refusal: str | None = None  # of the latest call, until it is compared
        self._scores: Scores | None = None  # of the commit to come
        self._failed: tuple[Failed, ...] = ()  # rows of the commit to come
        self._flight: dict[int, Plan] = {}
        self._moves: dict[int, Pairs] = {}  # of steps that had no rows
        self._verified = self._requests = self._refused = 0
        self._calls = self._call_table()

    def _call_table(self) -> dict[Kind, Callable[[bytes], None]]:
        """How each kind of call is made."""
        scheduler = self.scheduler

        def plainly(call: Callable[..., Any]) -> Callable[[bytes], None]:
            return lambda payload: call(*loads(payload))

        return {
            Kind.SUBMIT: self._submit,
            Kind.ABORT: plainly(scheduler.abort),
            Kind.PARK: plainly(scheduler.park),
            Kind.WAKE: plainly(scheduler.wake),
            Kind.PLAN: self._plan_again,
            Kind.COMMIT: lambda payload: self._commit(Commitment.decoded(payload)),
            Kind.COMMIT_ONES: lambda payload: self._commit(Commitment.decoded_ones(payload)),
            Kind.SCORES: self._score,
            Kind.FAILED: self._fail_rows,
            Kind.MEASURE: plainly(self._measure),
            Kind.FAIL: plainly(self._fail),
            Kind.RETRY: plainly(self._retry),
            Kind.PAUSE: plainly(scheduler.pause),
            Kind.RESUME: plainly(scheduler.resume),
            Kind.DRAIN: plainly(scheduler.drain),
            Kind.RESET_PREFIX_CACHE: plainly(scheduler.reset_prefix_cache),
        }

    @property
    def summary(self) -> Summary:
        stats = self.scheduler.stats
        return Summary(
            steps=stats.steps,
            verified=self._verified,
            requests=self._requests,
            refused=self._refused,
            tokens=stats.sampled,
            preemptions=stats.preemptions,
        )

    def run(self, until: int | None = None) -> Summary:
        """Replay up to the plan of step `until`, to the end, or to the first difference."""
        for _ in self.plans(until):
            pass
        return self.summary

    def plans(self, until: int | None = None) -> Iterator[Plan]:
        """The same, handing out each plan; after a difference the one that differs is the last.

        An error that is no PacelineError comes from a defect in the scheduler that the
        recorded run met at the same place; it is raised here as it was there.
        """
        for record in self.reader:
            plan = self._follow(record)
            if plan is not None:
                yield plan
            if self.divergence or (plan is not None and plan.step == until):
                return
        if self._plan is not None:
            yield self._plan
        if self._refusal is not None and self.reader.ending is Ending.CLOSED:
            self._diverge_by_refusal()

    def _follow(self, record: Record) -> Plan | None:
        """Make one call again or compare what came of it; returns a plan that was compared."""
        if record.kind is Kind.PLANNED:
            return self._compare(record.payload)
        if record.kind is Kind.REFUSED:
            self._compare_refusal(record.payload.decode())
            return None
        if self._refusal is not None:
            self._diverge_by_refusal()
            return None
        try:
            self._calls[record.kind](record.payload)
        except PacelineError as error:
            self._refusal = str(error)
        return None

    # -- calls --------------------------------------------------------------

    def _submit(self, payload: bytes) -> None:
        asked = Submission.decoded(payload)
        self.scheduler.submit(asked.request, asked.now, asked.parked)
        self._requests += 1

    def _plan_again(self, payload: bytes) -> None:
        (now,) = TIME.unpack(payload)
        self._plan = plan = self.scheduler.plan(now)
        self.scheduler.cache_events()  # nobody asks for them here, and they would pile up
        if not plan.empty:
            self._flight[plan.step] = plan
            if not len(plan.rows):
                self._moves[plan.step] = plan.copies + plan.swap_out + plan.swap_in

    def _commit(self, made: Commitment) -> None:
        plan = self._flight.get(made.step)
        if plan is None:
            plan = stand_in(made.step, made.rows, self._moves.get(made.step, ()))
        scores, self._scores = self._scores, None
        result = made.result if scores is None else scores.added_to(made.result)
        failed, self._failed = self._failed, ()
        result = replace(result, failed=failed) if failed else result
        self.scheduler.commit(plan, result, made.now)
        self._flight.pop(made.step, None)

    def _score(self, payload: bytes) -> None:
        self._scores = Scores.decoded(payload)

    def _fail_rows(self, payload: bytes) -> None:
        self._failed = failed_of(payload)

    def _measure(self, recompute: float, swap: float) -> None:
        self.scheduler.measure(Rates(recompute, swap))

    def _fail(self, step: int, now: float, message: str) -> None:
        self.scheduler.fail(self._give_up(step), now, message)

    def _retry(self, step: int, now: float) -> None:
        self.scheduler.retry(self._give_up(step), now)

    def _give_up(self, step: int) -> Plan:
        """The plan of a step that is lost, and with it all that are in flight."""
        plan = self._flight.get(step)
        if plan is None:
            return stand_in(step, 1)
        self._flight.clear()
        return plan

    # -- comparing ----------------------------------------------------------

    def _compare(self, payload: bytes) -> Plan | None:
        plan, self._plan = self._plan, None
        if plan is None:
            self._diverge("a step that was planned then is refused now")
            return None
        (step,) = STEP.unpack_from(payload)
        recorded, replayed = payload[STEP.size :], self._fingerprint.of(plan)
        if (step, recorded) == (plan.step, replayed):
            self._verified += 1
        else:
            found = differences(recorded, replayed)
            self._diverge(f"the plans differ in {found}; the replay has {brief(plan)}", step)
        return plan

    def _compare_refusal(self, then: str) -> None:
        now, self._refusal = self._refusal, None
        if now is None:
            self._diverge(f"a call that was refused then is accepted now: {then}")
        else:
            self._refused += 1

    def _diverge_by_refusal(self) -> None:
        self._diverge(f"a call that was accepted then is refused now: {self._refusal}")

    def _diverge(self, what: str, step: int | None = None) -> None:
        self.divergence = Divergence(self.scheduler.stats.steps if step is None else step, what)
