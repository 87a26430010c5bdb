"""Writes the transfers of a connector into a timeline."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.engine.trace.trace_file import TraceFile, TraceSpan
from paceline.kv.connector import Transfer, TransferEnd, TransferKind, TransferObserver
from paceline.kv.fence import TransferTicket

KIND = "transfer"


@dataclass(frozen=True, slots=True)
class OpenTransfer:
    """A transfer that has not ended, and when it began."""

    kind: TransferKind
    transfer: Transfer
    begin: float


class TransferTrace(TransferObserver):
    """Each transfer is a span, from when the connector got it to when the engine heard of its end.

    One that began before the timeline is left out.
    """

    def __init__(self, file: TraceFile, clock: Callable[[], float], block_bytes: int = 0) -> None:
        """`block_bytes` is the size of a block; 0: unknown."""
        self._file, self._clock, self._block_bytes = file, clock, block_bytes
        self._open: dict[TransferTicket, OpenTransfer] = {}

    def begun(self, kind: TransferKind, transfer: Transfer) -> None:
        self._open[transfer.ticket] = OpenTransfer(kind, transfer, self._clock())

    def ended(self, end: TransferEnd) -> None:
        if (one := self._open.pop(end.ticket, None)) is None:
            return
        transfer = one.transfer
        values: dict[str, int | str] = {
            "request": transfer.request.id,
            **amount(len(transfer.blocks), self._block_bytes),
        }
        if end.bad is not None:
            values |= {"good blocks": end.bad, "reason": end.reason}
        name = str(end.ticket.id)
        self._file.span(KIND, name, TraceSpan(one.kind, one.begin, self._clock(), values))


def amount(blocks: int, block_bytes: int) -> dict[str, int]:
    """Blocks, and their bytes if their size is known."""
    return {"blocks": blocks} | ({"bytes": blocks * block_bytes} if block_bytes else {})
