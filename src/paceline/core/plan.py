"""The messages of a step: the plan, its result, and what clients get."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.arrays import I32, I64, NO_I32, NO_INDEX, Bool, Index, Names, frozen
from paceline.core.errors import RequestError, StepError
from paceline.core.request import Finish, Request, token_array


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """A sequence that takes up a slot with this plan."""

    slot: int
    request: Request
    tokens: I32  # every token known so far
    computed: int  # positions already present in the KV cache
    blocks: tuple[int, ...]
    resumed: bool  # it ran before, and was preempted


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Who computes how much. Row i computes `count[i]` positions of `slot[i]`.

    Consecutive plans of a steady decode share one `Rows` object, so
    `plan.rows is previous.rows` means that nothing about the batch changed.
    """

    slot: Index
    epoch: I32
    serial: I64
    request_id: Names
    count: I32
    drafts: I32  # how many of `count` are draft tokens, the last ones
    samples: Bool  # does row i produce a token?

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Block-table entries written by this plan: `table[slot, index] = block`."""

    slot: Index
    index: Index
    block: I32

    def followed_by(self, other: "Grown") -> "Grown":
        return Grown(
            np.concatenate([self.slot, other.slot]),
            np.concatenate([self.index, other.index]),
            np.concatenate([self.block, other.block]),
        )


NOTHING_GROWN = Grown(NO_INDEX, NO_INDEX, NO_I32)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One step of work for the device."""

    step: int
    rows: Rows
    start: I32  # first position of each row (an upper bound while drafts are in flight)
    grown: Grown = NOTHING_GROWN
    admitted: tuple[Admitted, ...] = ()
    released: tuple[int, ...] = ()  # slots given up since the previous plan
    preempted: tuple[str, ...] = ()  # requests preempted since the previous plan
    finished: tuple[str, ...] = ()  # requests ended since the previous plan

    @property
    def total(self) -> int:
        """Positions this step computes."""
        return int(self.rows.count.sum())

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, by request id."""
        rows = self.rows
        ids: list[str] = rows.request_id.tolist()
        name = dict(zip(rows.slot.tolist(), ids, strict=True))
        blocks: dict[str, list[list[int]]] = {
            new.request.id: [list(new.blocks)] for new in self.admitted
        }
        for slot, block in zip(self.grown.slot.tolist(), self.grown.block.tolist(), strict=True):
            blocks.setdefault(name[slot], [[]])[0].append(block)
        drafts = zip(ids, rows.drafts.tolist(), strict=True)
        return {
            "step": self.step,
            "tokens": dict(zip(ids, rows.count.tolist(), strict=True)),
            "new": [new.request.id for new in self.admitted if not new.resumed],
            "resumed": [new.request.id for new in self.admitted if new.resumed],
            "preempted": list(self.preempted),
            "finished": list(self.finished),
            "total": self.total,
            "drafts": {request_id: count for request_id, count in drafts if count},
            "encoder": {},
            "blocks": blocks,
            "copies": [],
            "swap_out": [],
            "swap_in": [],
        }


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What the device sampled. Row i of the plan yielded the first `count[i]` of `ids[i]`."""

    ids: I32  # [rows, 1 + most drafts]
    count: I32  # [rows]; 0 where the row did not sample

    @staticmethod
    def of(plan: Plan, tokens: Mapping[str, Iterable[int]]) -> "StepResult":
        """A result from new tokens by request id; those that did not sample are absent."""
        rows = plan.rows
        order = {request_id: row for row, request_id in enumerate(rows.request_id.tolist())}
        if strangers := [request_id for request_id in tokens if request_id not in order]:
            raise StepError(f"step {plan.step} has no row for {strangers}")
        sampled: dict[int, I32] = {}
        for request_id, new in tokens.items():
            try:
                sampled[order[request_id]] = token_array(new, f"the result for {request_id!r}")
            except RequestError as error:
                raise StepError(str(error)) from None
        width = max([1, *map(len, sampled.values())])
        ids = np.full((len(rows), width), -1, np.int32)
        count = np.zeros(len(rows), np.int32)
        for row, new in sampled.items():
            ids[row, : len(new)] = new
            count[row] = len(new)
        return StepResult(ids, count)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one request. Each request has exactly one."""

    request_id: str
    finish: Finish
    stop_token: int | None = None  # the token that stopped it
    message: str = ""  # what went wrong, for `error`


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """New tokens, still in columns; the front end slices them."""

    serial: I64
    request_id: Names
    ids: I32  # [rows, 1 + most drafts]
    count: I32  # [rows]
    finished: tuple[Ended, ...] = ()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """By request id, for those that got a token or ended."""
        told: dict[str, dict[str, Any]] = {}
        ids: list[list[int]] = self.ids.tolist()
        for name, new, count in zip(self.request_id, ids, self.count.tolist(), strict=True):
            if count:
                told[name] = {"tokens": new[:count], "finish": None}
        for end in self.finished:
            told.setdefault(end.request_id, {"tokens": []})["finish"] = end.finish.value
        return told


NO_ROWS = Rows(
    slot=NO_INDEX,
    epoch=NO_I32,
    serial=frozen(np.empty(0, np.int64)),
    request_id=frozen(np.empty(0, object)),
    count=NO_I32,
    drafts=NO_I32,
    samples=frozen(np.empty(0, np.bool_)),
)
NO_IDS: I32 = frozen(np.empty((0, 1), np.int32))
