"""Writes what an engine does as a timeline: its steps, what the host does, and each request."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from paceline.core.events import Happened, Moment
from paceline.core.plan import Outputs, Plan
from paceline.engine.loop.ports import StepObserver
from paceline.engine.trace.trace_file import TraceFile, TraceSpan
from paceline.kv.connector import Transfer, TransferEnd, TransferKind, TransferObserver
from paceline.kv.fence import TransferTicket
from paceline.sched.scheduler import Scheduler

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


HOST, DEVICE, SWAP_OUT, SWAP_IN = "host", "device", "swap out", "swap in"  # tracks
REQUEST = "request"  # a kind of spans
# What a request does after a turn of its life, until the next one; the others change nothing.
PHASES = {
    Happened.SUBMITTED: "waiting",
    Happened.PARKED: "parked",
    Happened.WOKEN: "waiting",
    Happened.ADMITTED: "prefill",
    Happened.RESUMED: "computing again",
    Happened.CONTINUED: "computing again",
    Happened.FIRST_TOKEN: "decode",
    Happened.PREEMPTED: "preempted",
    Happened.SWAPPED: "swapped out",
    Happened.RETURNED: "decode",
}


class StepTrace(StepObserver):
    """The engine calls it at the borders of what it does; the time between two calls is a slice.

        host      | plan | launch | wait       | commit | report |
        device           | step 7                       |
        swap out         | 12 blocks                    |
        request   | a                                          |
                  | waiting | prefill | decode                 |
        load      | load  |

    With steps launched ahead, the slice of a step on the device begins when its launch begins or
    when the step before it has ended, whichever is later. Blocks are swapped within a step, so the
    slices of swaps are those of their steps. The life of a request is written when it has ended,
    or when the engine is closed.
    """

    def __init__(
        self,
        file: TraceFile,
        scheduler: Scheduler,
        clock: Callable[[], float] = monotonic,
        block_bytes: int = 0,
    ) -> None:
        """`block_bytes` is the size of a block; 0: unknown."""
        self._file, self._scheduler, self._clock = file, scheduler, clock
        self._block_bytes = block_bytes
        self._last: float | None = None  # when the latest slice of the host ended
        self._begun: dict[int, float] = {}  # when each step in flight was launched
        self._landed = clock()
        scheduler.view.watch_transfers(TransferTrace(file, clock, block_bytes))

    # -- the borders --------------------------------------------------------

    def planning(self) -> None:
        self._last = self._clock()

    def planned(self, plan: Plan) -> None:
        now = self._border("plan")
        if not plan.empty:
            self._begun[plan.step] = now
        self._write_lives(plan.finished)

    def launched(self, plan: Plan) -> None:
        if not plan.empty:
            self._border("launch")

    def landed(self, plan: Plan) -> None:
        now = self._border("wait")
        if plan.empty:
            return
        begin = max(self._begun.pop(plan.step, now), self._landed)
        self._landed = now
        self._file.slice(DEVICE, f"step {plan.step}", begin, now, step_values(plan))
        for track, moved in ((SWAP_OUT, plan.swap_out), (SWAP_IN, plan.swap_in)):
            if moved:
                values = amount(len(moved), self._block_bytes)
                self._file.slice(track, f"step {plan.step}", begin, now, values)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        now = self._border("commit")
        gauges = self._scheduler.view.gauges()
        self._file.counter("requests", now, {"running": gauges.running, "waiting": gauges.waiting})
        self._file.counter("KV in use", now, {"%": round(100 * gauges.kv_usage, 2)})

    def changed(self) -> None:
        if self._last is None:
            return
        self._border("report")
        self._last = None  # what follows is not a part of a turn

    def close(self) -> None:
        view = self._scheduler.view
        self._write_lives(view.ended_ids())
        for name in view.live_ids():
            write_life(self._file, name, view.life(name), self._clock())
        self._file.flush()

    def _border(self, name: str) -> float:
        """End a slice of the host, and begin another."""
        now = self._clock()
        self._file.slice(HOST, name, now if self._last is None else self._last, now)
        self._last = now
        return now

    # -- requests -----------------------------------------------------------

    def _write_lives(self, request_ids: Iterable[str]) -> None:
        for name in request_ids:
            if (ended := self._scheduler.view.ended(name)) is not None:
                write_life(self._file, name, ended.life, ended.life[-1].time)


class RecordedTrace(StepTrace):
    """The timeline of a recording, which knows when steps were planned and committed, and not what
    the host did in between."""

    def _border(self, name: str) -> float:
        return self._clock()


def write_life(file: TraceFile, request_id: str, life: Sequence[Moment], end: float) -> None:
    """The phases of a request, one after another, up to a time."""
    turns = [one for one in life if one.happened in PHASES]
    ends = [*(one.time for one in turns[1:]), end]
    phases = [
        TraceSpan(
            PHASES[one.happened],
            one.time,
            until,
            {"step": one.step, one.happened.value: one.amount, "cause": one.cause},
        )
        for one, until in zip(turns, ends, strict=True)
    ]
    file.span(REQUEST, request_id, TraceSpan(request_id, life[0].time, end), phases)


def step_values(plan: Plan) -> dict[str, Any]:
    """What a step does, in numbers."""
    rows = plan.rows
    several = rows.count - rows.drafts > 1
    found = {
        "rows": len(rows),
        "positions": plan.total,
        "prompts": int(several.sum()),
        "drafts": int(rows.drafts.sum()),
        "admitted": len(plan.admitted),
        "preempted": len(plan.preempted),
        "copied blocks": len(plan.copies),
        "swapped out": len(plan.swap_out),
        "swapped in": len(plan.swap_in),
    }
    return {name: value for name, value in found.items() if value}
