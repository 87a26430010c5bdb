"""Plans as bytes, for processes that run the same plans."""

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paceline.core.multimodal import NOTHING_EMBEDDED, Embedded
from paceline.core.plan import (
    NO_STATE_MOVES,
    NOTHING_GROWN,
    Admitted,
    Blocks,
    Grown,
    Kind,
    Pairs,
    Plan,
    Rows,
    SlotBlocks,
    StateMoves,
    TokensBySlot,
)
from paceline.engine.transport.wire import decode_request, encode_request


class EncodedRows(msgspec.Struct, array_like=True, frozen=True):
    """See `Rows`."""

    slot: bytes
    epoch: bytes
    serial: bytes
    request_id: list[str]
    child: bytes
    count: bytes
    drafts: bytes
    samples: bytes

    @staticmethod
    def of(rows: Rows) -> "EncodedRows":
        return EncodedRows(
            rows.slot.tobytes(),
            rows.epoch.tobytes(),
            rows.serial.tobytes(),
            rows.request_id.tolist(),
            rows.child.tobytes(),
            rows.count.tobytes(),
            rows.drafts.tobytes(),
            rows.samples.tobytes(),
        )

    def rows(self) -> Rows:
        names = np.empty(len(self.request_id), object)
        names[:] = self.request_id
        return Rows(
            array(self.slot, np.intp),
            array(self.epoch, np.int32),
            array(self.serial, np.int64),
            names,
            array(self.child, np.int32),
            array(self.count, np.int32),
            array(self.drafts, np.int32),
            array(self.samples, np.bool_),
        )


class EncodedGrown(msgspec.Struct, array_like=True, frozen=True):
    """See `Grown`."""

    slot: bytes
    index: bytes
    block: bytes
    more: "tuple[EncodedGrown, ...]"

    @staticmethod
    def of(grown: Grown) -> "EncodedGrown":
        columns = grown.slot.tobytes(), grown.index.tobytes(), grown.block.tobytes()
        return EncodedGrown(*columns, tuple(map(EncodedGrown.of, grown.more)))

    def grown(self) -> Grown:
        more = tuple(one.grown() for one in self.more)
        slot, index = array(self.slot, np.intp), array(self.index, np.intp)
        return Grown(slot, index, array(self.block, np.int32), more)


class EncodedAdmitted(msgspec.Struct, array_like=True, frozen=True):
    """See `Admitted`. Of images, only the shapes are known."""

    slot: int
    request: msgspec.Raw
    handle: int
    tokens: bytes
    computed: int
    blocks: Blocks
    resumed: bool
    more: tuple[Blocks, ...]

    @staticmethod
    def of(new: Admitted) -> "EncodedAdmitted":
        request, tokens = encode_request(new.request.without_cells()), new.tokens.tobytes()
        lengths = new.computed, new.blocks, new.resumed, new.more
        return EncodedAdmitted(new.slot, request, new.request.handle, tokens, *lengths)

    def admitted(self) -> Admitted:
        request, tokens = decode_request(self.request, self.handle), array(self.tokens, np.int32)
        lengths = self.computed, self.blocks, self.resumed, self.more
        return Admitted(self.slot, request, tokens, *lengths)


class EncodedStateMoves(msgspec.Struct, array_like=True, frozen=True):
    saves_before: SlotBlocks
    swap_out: SlotBlocks
    copies: Pairs
    loads: SlotBlocks
    swap_in: SlotBlocks
    saves: SlotBlocks
    block_copies: Pairs

    @staticmethod
    def of(moves: StateMoves) -> "EncodedStateMoves":
        return EncodedStateMoves(*(getattr(moves, name) for name in STATE_MOVES))

    def moves(self) -> StateMoves:
        return StateMoves(*(getattr(self, name) for name in STATE_MOVES))


STATE_MOVES = tuple(one.name for one in fields(StateMoves))


class EncodedPlan(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A plan without what only clients want to know, and without images to encode: the process
    that sends plans encodes them for all."""

    step: int
    rows: EncodedRows | None  # None: those of the plan before it
    start: bytes
    grown: EncodedGrown | None
    admitted: tuple[EncodedAdmitted, ...]
    released: tuple[int, ...]
    copies: Pairs
    swap_out: Pairs
    swap_in: Pairs
    chosen: TokensBySlot
    kind: Kind
    embedded: tuple[bytes, bytes, bytes] | None
    states: EncodedStateMoves | None


class PlanWriter:
    """Encodes the plans of one scheduler in their order. Rows that stay the same are sent once."""

    def __init__(self) -> None:
        self._rows: Rows | None = None

    def encoded(self, plan: Plan) -> EncodedPlan:
        rows = None if plan.rows is self._rows else EncodedRows.of(plan.rows)
        self._rows, placed = plan.rows, plan.embedded
        columns = placed.row.tobytes(), placed.offset.tobytes(), placed.source.tobytes()
        return EncodedPlan(
            plan.step,
            rows,
            plan.start.tobytes(),
            None if plan.grown is NOTHING_GROWN else EncodedGrown.of(plan.grown),
            tuple(map(EncodedAdmitted.of, plan.admitted)),
            plan.released,
            plan.copies,
            plan.swap_out,
            plan.swap_in,
            plan.chosen,
            plan.kind,
            columns if len(placed) else None,
            None if plan.states.empty else EncodedStateMoves.of(plan.states),
        )


class PlanReader:
    """Restores plans in their order: `rows` is the same object where the writer had the same."""

    def __init__(self) -> None:
        self._rows: Rows | None = None

    def plan(self, message: EncodedPlan) -> Plan:
        if message.rows is not None:
            self._rows = message.rows.rows()
        assert self._rows is not None, "the first plan has no rows"
        placed = NOTHING_EMBEDDED
        if message.embedded is not None:
            row, offset, source = message.embedded
            placed = Embedded(array(row, np.intp), array(offset, np.int32), array(source, np.int32))
        return Plan(
            message.step,
            self._rows,
            array(message.start, np.int32),
            NOTHING_GROWN if message.grown is None else message.grown.grown(),
            tuple(one.admitted() for one in message.admitted),
            message.released,
            copies=message.copies,
            swap_out=message.swap_out,
            swap_in=message.swap_in,
            chosen=message.chosen,
            kind=message.kind,
            embedded=placed,
            states=NO_STATE_MOVES if message.states is None else message.states.moves(),
        )


def array(cells: bytes, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A writable array, as plans have them."""
    return np.frombuffer(bytearray(cells), dtype)
