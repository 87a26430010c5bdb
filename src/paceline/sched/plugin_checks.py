"""Checks of what policies, limits and disciplines return: a wrong answer raises PluginError.

They run at every call, so they are cheap: they search for the wrong value only after a check fails.
"""

from typing import Any, NoReturn, Protocol, cast

import numpy as np

from paceline.core.arrays import I32
from paceline.core.errors import ConfigError, PluginError
from paceline.core.request import Sequence
from paceline.core.settings.config import StepConfig
from paceline.sched.admission.rows import WantedRows
from paceline.sched.composition import Composition
from paceline.sched.slots import SlotTable

NUMBERS = (int, float, np.number)
WHOLE = (int, np.integer)
Counts = np.ndarray[Any, np.dtype[Any]]


class Named(Protocol):
    """A policy, under the name in the settings."""

    @property
    def name(self) -> str: ...


def is_number(value: Any) -> bool:
    """Is it a number that can be ordered, which NaN cannot?"""
    return isinstance(value, NUMBERS) and bool(value == value)  # noqa: PLR0124 - not of a NaN


def is_within(counts: Any, most: I32) -> bool:
    """Is there an integer for each row, from 0 to its `most`?"""
    if counts is most:
        return True
    if not isinstance(counts, np.ndarray):
        return False
    given = cast("Counts", counts)
    if given.shape != most.shape or given.dtype.kind not in "iu":
        return False
    if given.dtype == np.int32:  # negative numbers are large as unsigned ones
        return not np.count_nonzero(given.view(np.uint32) > most.view(np.uint32))
    return not np.count_nonzero((given < 0) | (given > most))


# -- policies ---------------------------------------------------------------


def check_rank(policy: Named, sequence: Sequence, rank: Any) -> None:
    if not (isinstance(rank, tuple) and all(map(is_number, cast("tuple[Any, ...]", rank)))):
        raise PluginError(
            f"policy {policy.name!r}: the rank of request {sequence.id!r} is {rank!r:.200}; "
            "it must be a tuple of numbers, without NaN"
        )


def check_flow_rank(policy: Named, flow: Any, rank: Any) -> None:
    if not is_number(rank):
        raise PluginError(
            f"policy {policy.name!r}: the rank of flow {flow!r:.80} is {rank!r:.200}; "
            "it must be a number, not NaN"
        )


def check_flow(policy: Named, sequence: Sequence, flow: Any) -> None:
    try:
        hash(flow)
    except TypeError:
        raise PluginError(
            f"policy {policy.name!r}: the flow of request {sequence.id!r} is {flow!r:.200}; "
            "it must be hashable, such as a string"
        ) from None


def check_share(policy: Named, rows: WantedRows, granted: Any) -> None:
    """No row gets more than it wants, all fit the budget, and at least one gets a position."""
    if not is_within(granted, rows.want):
        wrong_counts(f"policy {policy.name!r}: share", rows, granted)
    total, wanted = int(granted.sum()), int(rows.want.sum())
    if total > rows.left:
        raise PluginError(
            f"policy {policy.name!r}: share gives {total} positions to {len(rows.want)} residents; "
            f"the budget is {rows.left}"
        )
    if not total and wanted and rows.left > 0:
        first = rows.sequence(int(np.flatnonzero(rows.want)[0]))
        raise PluginError(
            f"policy {policy.name!r}: share gives nothing to {len(rows.want)} residents, first of "
            f"all request {first.id!r}; they want {wanted} positions of a budget of {rows.left}"
        )


def check_room(policy: Named, sequence: Sequence, room: Any, left: int) -> None:
    if not (isinstance(room, WHOLE) and 0 <= room <= left):
        raise PluginError(
            f"policy {policy.name!r}: the room of request {sequence.id!r} is {room!r:.200}; "
            f"it must be a whole number from 0 to {left}"
        )


def check_victim(policy: Named, asked: str, table: SlotTable, slot: Any) -> None:
    """The slot that the method `asked` returned holds a request."""
    if not (isinstance(slot, WHOLE) and 0 <= slot < table.capacity and table.resident[slot]):
        raise PluginError(
            f"policy {policy.name!r}: {asked} names slot {slot!r:.80}, which holds no request; "
            f"the slots of residents are {table.order.tolist()!s:.200}"
        )


def check_displaced(policy: Named, table: SlotTable, slots: list[Any]) -> None:
    """Each slot holds a request, and none is listed twice."""
    for slot in slots:
        check_victim(policy, "displaceable", table, slot)
    if len(set(slots)) < len(slots):
        raise PluginError(
            f"policy {policy.name!r}: displaceable names a slot twice: {slots!r:.200}"
        )


def check_late(policy: Named, sequence: Any) -> None:
    if not isinstance(sequence, Sequence) or sequence.finish is not None:
        ended = f"request {sequence.id!r}" if isinstance(sequence, Sequence) else repr(sequence)
        raise PluginError(
            f"policy {policy.name!r}: late names {ended:.200}; "
            "it must be a sequence that has not ended"
        )


# -- limits and disciplines -------------------------------------------------


def check_listed(discipline: str, name: str, kinds: Any) -> None:
    """The limits or gates of a discipline are a tuple of classes."""
    is_listed = isinstance(kinds, tuple | list)
    if not is_listed or not all(isinstance(kind, type) for kind in cast("list[Any]", kinds)):
        raise ConfigError(
            f"{name} of discipline {discipline!r} is {kinds!r:.200}; "
            "it must be a tuple of classes, such as (Budget,)"
        )


def wrong_counts(who: str, rows: WantedRows, counts: Any) -> NoReturn:
    """Raise an error for the first wrong count."""
    given = np.asarray(counts)
    if not isinstance(counts, np.ndarray) or given.shape != rows.want.shape:
        raise PluginError(
            f"{who} returns {counts!r:.200}; it must be an array with a whole number for each of "
            f"{len(rows.want)} rows"
        )
    if given.dtype.kind not in "iu":
        raise PluginError(f"{who} returns numbers of type {given.dtype}; they must be whole")
    row = int(np.flatnonzero((given < 0) | (given > rows.want))[0])
    raise PluginError(
        f"{who} gives request {rows.sequence(row).id!r} {int(given[row])} positions; "
        f"it must be from 0 to {int(rows.want[row])}"
    )


def check_composition(discipline: str, step: Any, table: SlotTable) -> None:
    """Check a step built by a plug-in discipline."""
    who = f"discipline {discipline!r}"
    if not isinstance(step, Composition):
        raise PluginError(f"{who} builds {step!r:.200}; it must be a Composition")
    slot, count, end = step.slot, step.count, step.start + step.count
    if not len(slot) == len(count) == len(step.start) == len(step.drafts):
        raise PluginError(f"{who} builds columns of different lengths: {step!r:.200}")
    slots: list[int] = slot.tolist()
    if len(set(slots)) < len(slots) or not table.resident[slot].all():
        raise PluginError(f"{who} builds rows for slots {slots}; each must hold a request, once")
    wrong = np.flatnonzero((count < 1) | (end != table.planned[slot]))
    if len(wrong):
        row = int(wrong[0])
        raise PluginError(
            f"{who} gives request {table.name[slots[row]]!r} {int(count[row])} positions from "
            f"{int(step.start[row])}, but {int(table.planned[slots[row]])} are handed out"
        )


def over_budget(step: StepConfig, positions: int) -> NoReturn:
    raise PluginError(
        f"discipline {step.discipline!r} builds a step of {positions} positions; "
        f"max_num_batched_tokens is {step.max_num_batched_tokens}"
    )
