"""The messages of a step: the plan, its result, and what clients get."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from paceline.core.arrays import (
    F32,
    I32,
    I64,
    NO_I32,
    NO_INDEX,
    Bool,
    Index,
    Names,
    frozen,
    token_array,
)
from paceline.core.errors import RequestError, StepError
from paceline.core.events import NO_TIMINGS, Timings, message
from paceline.core.multimodal import NOTHING_EMBEDDED, Embedded, Encoding
from paceline.core.pooling import PooledSpan, PromptScores
from paceline.core.request import Finish, Request, child_label

Kind = Literal["mixed", "prefill", "decode"]
Pairs = tuple[tuple[int, int], ...]
TokensBySlot = tuple[tuple[int, tuple[int, ...]], ...]
Blocks = tuple[int, ...]  # of one sequence, by index
NO_BLOCK = -1  # an index without a block: no position of the sequence reads it any more


@message()
class Admitted:
    """A sequence that takes up a slot with this plan."""

    slot: int
    request: Request
    tokens: I32  # every token known so far
    computed: int  # positions already present in the KV cache
    blocks: Blocks  # of group 0
    resumed: bool  # it ran before, and was preempted
    more: tuple[Blocks, ...] = ()  # of the groups from 1 on


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
    child: I32  # which of several sequences of its request; -1: the only one
    count: I32
    drafts: I32  # how many of `count` are draft tokens, the last ones
    samples: Bool  # does row i produce a token?

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def labels(self) -> list[str]:
        """A name for each row that no other row has."""
        ids: list[str] = self.request_id.tolist()
        return [child_label(*pair) for pair in zip(ids, self.child.tolist(), strict=True)]

    def only(self, kept: Bool) -> "Rows":
        return Rows(*(getattr(self, column.name)[kept] for column in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Block-table entries written by this plan: `table[slot, index] = block`."""

    slot: Index
    index: Index
    block: I32
    more: "tuple[Grown, ...]" = ()  # of the groups from 1 on; this one is of group 0

    def followed_by(self, other: "Grown") -> "Grown":
        slot, index = np.append(self.slot, other.slot), np.append(self.index, other.index)
        block = np.append(self.block, other.block)
        return Grown(slot, index, block, _each_followed_by(self.more, other.more))


def _each_followed_by(first: tuple[Grown, ...], then: tuple[Grown, ...]) -> tuple[Grown, ...]:
    """The entries of several groups; nothing has grown in a plan that lists no groups."""
    if not first or not then:
        return first or then
    return tuple(one.followed_by(other) for one, other in zip(first, then, strict=True))


NOTHING_GROWN = Grown(NO_INDEX, NO_INDEX, NO_I32)

SlotBlocks = tuple[tuple[int, Blocks], ...]  # slots, and the blocks of a state for each


def json_form(moves: tuple[Any, ...] | int) -> Any:
    """Tuples within each other as lists."""
    return [*map(json_form, moves)] if isinstance(moves, tuple) else moves


@message()
class StateMoves:
    """Copies of states, which the device makes in the order of these fields.

    A model with states has a working state for each slot. Rows at position 0 begin from zeros, and
    each row advances its state up to the last accepted draft. Elsewhere, a state takes
    `CacheConfig.state_blocks` blocks. An admission behind position 0 has a load, or a copy if it is
    forked, or comes from the host.
    """

    saves_before: SlotBlocks = ()  # slot to blocks, before the plan changes anything else
    swap_out: SlotBlocks = ()  # slot to host blocks, at the same time
    copies: Pairs = ()  # slot to slot; all are read before any is written
    loads: SlotBlocks = ()  # blocks to slot
    swap_in: SlotBlocks = ()  # host blocks to slot
    # The rows are computed here. Then, at the positions that they have reached:
    saves: SlotBlocks = ()  # slot to blocks
    block_copies: Pairs = ()  # device block to device block: KV of partial blocks

    @property
    def empty(self) -> bool:
        left, came = self.saves_before or self.swap_out, self.loads or self.swap_in
        return not (left or self.copies or came or self.saves)

    def to_dict(self) -> dict[str, list[Any]]:
        """The copies as plain data; nothing if there are none."""
        names = () if self.empty else [one.name for one in fields(self)]
        return {name: json_form(getattr(self, name)) for name in names}


NO_STATE_MOVES = StateMoves()


@message()
class Plan:
    """The work of one step.

    It lists which slots were `released` and `admitted`, which requests `preempted` and `finished`,
    what has `grown` or was `chosen`, and rows of some `kind` with the position of their `start`.

    Before it writes anything else, the device does the first two of `states`, `copies` between its
    own blocks, then `swap_out` to the host, then `swap_in` from it, each in the order listed. Then
    it does the next three of `states` and `encode`, and computes the rows, in which the positions
    of `embedded` have what was encoded in this step or before. The rest of `states` comes last.

    Layers that read different positions are in different groups, numbered as in
    `CacheConfig.groups`. All groups take blocks from one pool, and each has a block table of its
    own. `Admitted.blocks` and `Grown` are of group 0, and their `more` has the same for further
    groups. Groups may grow by different numbers of blocks. Entries that a sequence reads no more
    are `NO_BLOCK` when it is admitted. The blocks of entries that it passes later are reused; no
    message says so, because no position of it reads them.
    """

    step: int
    rows: Rows
    start: I32  # first position of each row (an upper bound while drafts are in flight)
    grown: Grown = NOTHING_GROWN
    admitted: tuple[Admitted, ...] = ()
    released: tuple[int, ...] = ()  # slots given up since the previous plan
    preempted: tuple[str, ...] = ()  # requests preempted since the previous plan
    finished: tuple[str, ...] = ()  # requests ended since the previous plan
    copies: Pairs = ()  # device block to device block
    swap_out: Pairs = ()  # device block to host block
    swap_in: Pairs = ()  # host block to device block
    # Slots and their tokens from the next position to compute on, where the host knows them and
    # the device may have sampled others: of beams, and where a constraint leaves one way.
    chosen: TokensBySlot = ()
    kind: Kind = "mixed"
    encode: tuple[Encoding, ...] = ()
    embedded: Embedded = NOTHING_EMBEDDED
    states: StateMoves = NO_STATE_MOVES

    @property
    def empty(self) -> bool:
        """Whether there is nothing to run, so that no commit is needed."""
        moved = self.copies or self.swap_out or self.swap_in or not self.states.empty
        return not (len(self.rows) or moved)

    @property
    def total(self) -> int:
        """Number of positions that the step computes."""
        return int(self.rows.count.sum())

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, by request id."""
        rows = self.rows
        ids = rows.labels
        name = dict(zip(rows.slot.tolist(), ids, strict=True))
        drafts = zip(ids, rows.drafts.tolist(), strict=True)
        encoder: dict[str, list[int]] = {}
        for one in self.encode:
            encoder.setdefault(name[one.slot], []).append(one.image)
        return {
            "step": self.step,
            "tokens": dict(zip(ids, rows.count.tolist(), strict=True)),
            "new": [new.request.id for new in self.admitted if not new.resumed],
            "resumed": [new.request.id for new in self.admitted if new.resumed],
            "preempted": list(self.preempted),
            "finished": list(self.finished),
            "total": self.total,
            "drafts": {request_id: count for request_id, count in drafts if count},
            "encoder": encoder,
            "blocks": self._new_blocks(name),
            "copies": json_form(self.copies),
            "swap_out": json_form(self.swap_out),
            "swap_in": json_form(self.swap_in),
            "states": self.states.to_dict(),
        }

    def _new_blocks(self, name: dict[int, str]) -> dict[str, list[list[int]]]:
        """New blocks by request id and group; `name` is by slot."""
        blocks = {
            new.request.id: [
                [block for block in group if block != NO_BLOCK] for group in (new.blocks, *new.more)
            ]
            for new in self.admitted
        }
        grown = self.grown, *self.grown.more
        for group, one in enumerate(grown):
            for slot, block in zip(one.slot.tolist(), one.block.tolist(), strict=True):
                blocks.setdefault(name[slot], [[] for _ in grown])[group].append(block)
        return blocks


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The likeliest continuations of each row, best first; -1 fills rows that have fewer."""

    ids: I32  # [rows, most candidates]
    logprob: F32  # [rows, most candidates]


@dataclass(frozen=True, slots=True)
class Failed:
    """A row that came to nothing: its request ends with an error, or computes again what it has
    from one that failed before it. No other of the step is touched."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Forced:
    """Tokens that follow what a row sampled, because its constraint allows no others."""

    row: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """The sampled tokens of a step: row i of the plan has the first `count[i]` of `ids[i]`."""

    ids: I32  # [rows, 1 + most drafts]
    count: I32  # [rows]; 0 where the row did not sample, or failed
    logprob: F32 | None = None  # [rows, 1 + most drafts]; due where a request wants its best
    candidates: Candidates | None = None  # due where a request searches with beams
    prompt: tuple[PromptScores, ...] = ()  # of rows that compute prompts whose scores are wanted
    failed: tuple[Failed, ...] = ()  # rows whose logits were no numbers, or the like
    computed_drafts: I32 | None = None  # [rows]; None: as many as the plan has
    pooled: tuple[PooledSpan, ...] = ()  # of rows that compute prompts which are pooled
    forced: tuple[Forced, ...] = ()  # the device did not sample these

    def drafts_of(self, rows: Rows) -> I32:
        """Drafts that the device computed: as many as planned, or fewer where a proposer had
        nothing to propose."""
        return rows.drafts if self.computed_drafts is None else self.computed_drafts

    @staticmethod
    def of(
        plan: Plan,
        tokens: Mapping[str, Iterable[int]],
        logprobs: Mapping[str, Iterable[float]] | None = None,
        candidates: Mapping[str, Iterable[tuple[int, float]]] | None = None,
        failed: Mapping[str, str] | None = None,
    ) -> "StepResult":
        """Build a result from new tokens by request id; requests that did not sample are absent.

        A row that has several sequences is named by its label, such as "0_b": `StepResult.of(plan,
        {"a": [17], "0_b": [4]})`. `failed` has the reason for each row that failed.
        """
        rows = plan.rows
        order = {label: row for row, label in enumerate(rows.labels)}
        for named in (tokens, logprobs or {}, candidates or {}, failed or {}):
            if strangers := [label for label in named if label not in order]:
                raise StepError(f"step {plan.step} has no row for {strangers}")
        sampled: dict[int, I32] = {}
        for label, new in tokens.items():
            try:
                sampled[order[label]] = token_array(new, f"the result for {label!r}")
            except RequestError as error:
                raise StepError(str(error)) from None
        width = max([1, *map(len, sampled.values())])
        ids = np.full((len(rows), width), -1, np.int32)
        count = np.zeros(len(rows), np.int32)
        for row, new in sampled.items():
            ids[row, : len(new)] = new
            count[row] = len(new)
        scores = None if logprobs is None else np.zeros((len(rows), width), np.float32)
        for label, values in (logprobs or {}).items():
            given = list(values)
            scores[order[label], : len(given)] = given  # pyright: ignore[reportOptionalSubscript]
        lost = tuple(Failed(order[label], reason) for label, reason in (failed or {}).items())
        found = _candidates(order, candidates or {})
        return StepResult(ids, count, scores, found, failed=lost)


def _candidates(
    order: dict[str, int], named: Mapping[str, Iterable[tuple[int, float]]]
) -> Candidates | None:
    if not named:
        return None
    given = {order[label]: list(pairs) for label, pairs in named.items()}
    shape = len(order), max(map(len, given.values()))
    found = Candidates(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32))
    for row, pairs in given.items():
        for column, (token, logprob) in enumerate(pairs):
            found.ids[row, column], found.logprob[row, column] = token, logprob
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the sequences that a request returns when only the best are reported."""

    tokens: tuple[int, ...]
    finish: Finish
    score: float  # log-probability by length, as the request weighs it
    stop_token: int | None = None


@message(eq=True)
class Ended:
    """The end of a request, of which each has exactly one, or of one of its children.

    The scheduler reports why; `timings` and `cached` are added for a request, not for a child,
    by the engine that ran it.
    """

    request_id: str
    finish: Finish
    stop_token: int | None = None  # the token that stopped it
    message: str = ""  # what went wrong, for `error` and `timeout`
    child: int = -1  # -1: the request itself
    choices: tuple[Choice, ...] = ()  # best first, where no tokens were reported before the end
    unreturned: int = 0  # tokens of samples that were generated and are not among the best
    timings: Timings = NO_TIMINGS
    cached: int = 0  # prompt tokens found in the prefix cache
    kv_transfer_params: Mapping[str, Any] | None = None  # of a connector: who may load its KV


@message()
class Outputs:
    """The new tokens of a commit, in columns, and the requests that ended."""

    serial: I64
    request_id: Names
    child: I32  # which of several sequences of the request; -1: the only one
    handle: I64  # what the front end knows the sequence by
    ids: I32  # [rows, 1 + most drafts]
    count: I32  # [rows]
    finished: tuple[Ended, ...] = ()
    row: Index | None = None  # the plan's row of each; None: all of them are here

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Tokens and finish reason by request id, for requests with new tokens or an end."""
        found: dict[str, dict[str, Any]] = {}
        columns = self.request_id, self.child.tolist(), self.ids.tolist(), self.count.tolist()
        for request_id, child, new, count in zip(*columns, strict=True):
            if count:
                label = child_label(request_id, child)
                found[label] = {"tokens": new[:count], "finish": None}
        for end in self.finished:
            label = child_label(end.request_id, end.child)
            found.setdefault(label, {"tokens": []})["finish"] = end.finish.value
            if end.choices:
                found[label]["choices"] = [list(choice.tokens) for choice in end.choices]
        return found


NO_ROWS = Rows(
    slot=NO_INDEX,
    epoch=NO_I32,
    serial=frozen(np.empty(0, np.int64)),
    request_id=frozen(np.empty(0, object)),
    child=NO_I32,
    count=NO_I32,
    drafts=NO_I32,
    samples=frozen(np.empty(0, np.bool_)),
)
NO_IDS: I32 = frozen(np.empty((0, 1), np.int32))
NO_OUTPUTS = Outputs(NO_ROWS.serial, NO_ROWS.request_id, NO_I32, NO_ROWS.serial, NO_IDS, NO_I32)
