"""Makes frames of an engine from its scheduler and from what was recorded of its steps."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from paceline.core.arrays import I64
from paceline.core.request import Sequence
from paceline.engine.live.frames import (
    BLOCK_KINDS,
    BlockCells,
    Frame,
    QueuedRequest,
    QueueHead,
    RequestCounts,
    TenantShare,
    Totals,
)
from paceline.engine.live.step_recorder import StepRecorder
from paceline.engine.loop.ports import Clock
from paceline.kv.pool import BlockPool
from paceline.sched.scheduler import Scheduler

MOST_CELLS = 1024
PART_BLOCKS = 8192  # that are read at once, which takes about half a millisecond
LETTERS = np.frombuffer(BLOCK_KINDS, np.uint8)


class PoolMap:
    """Reads one part of the pool after another; `_counts[cell, kind]` is how many blocks of a cell
    are of each kind, by what was read last."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._per_cell = max(-(-pool.size // MOST_CELLS), 1)
        cells = -(-pool.size // self._per_cell)
        self._part = max(PART_BLOCKS // self._per_cell, 1)  # cells
        self._counts: I64 = np.zeros((cells, len(BLOCK_KINDS)), np.int64)
        self._read_at = [0.0] * -(-cells // self._part)  # by part
        self._next = 0  # part

    def read_all(self, now: float) -> None:
        for _ in self._read_at:
            self.read(now)

    def read(self, now: float) -> None:
        """Read the next part."""
        if not self._read_at:
            return
        part, self._next = self._next, (self._next + 1) % len(self._read_at)
        begin = part * self._part
        end = min(begin + self._part, len(self._counts))
        first, last = begin * self._per_cell, min(end * self._per_cell, self._pool.size)
        cell = np.arange(last - first) // self._per_cell
        kinds = len(BLOCK_KINDS)
        found = np.bincount(
            cell * kinds + self._pool.kinds(first, last), minlength=(end - begin) * kinds
        )
        self._counts[begin:end] = found.reshape(end - begin, kinds)
        self._read_at[part] = now

    def cells(self, now: float) -> BlockCells:
        free, cached, held, shared = self._counts.sum(axis=0).tolist()
        return BlockCells(
            size=self._pool.size,
            held=held,
            shared=shared,
            cached=cached,
            free=free,
            per_cell=self._per_cell,
            cells=LETTERS[self._counts.argmax(axis=1)].tobytes().decode("ascii"),
            age=now - min(self._read_at, default=now),
        )


MOST_QUEUED = 32  # requests of the queue that a frame lists
MOST_TENANTS = 32
LONGEST_ID = 256  # characters of ids and tenants


class FrameMaker:
    """Each frame has what happened since the one before it."""

    def __init__(
        self, scheduler: Scheduler, recorder: StepRecorder, clock: Clock, run: int
    ) -> None:
        self._scheduler, self._view, self._clock = scheduler, scheduler.view, clock
        self._run, self._number = run, 0
        self.recorder = recorder
        device, host = self._view.pools
        self._blocks, self._host = PoolMap(device), PoolMap(host)
        self._since, self._sampled = 0.0, 0

    def begin(self) -> None:
        """Record from here on."""
        self._since, self._sampled = self._clock(), self._scheduler.stats.sampled
        self._blocks.read_all(self._since)
        self._host.read_all(self._since)
        self.recorder.begin()

    def frame(self, engine: int) -> Frame:
        now, since, recorder = self._clock(), self._since, self.recorder
        self._number += 1
        self._since = now
        self._blocks.read(now)
        self._host.read(now)
        records, left_out = recorder.take()
        first_token, between = recorder.tokens.counts()
        totals, config = self._totals(), self._scheduler.config
        new, self._sampled = totals.tokens - self._sampled, totals.tokens
        return Frame(
            engine=engine,
            run=self._run,
            number=self._number,
            time=now,
            since=since,
            policy=config.policy.policy,
            slots=config.step.max_num_seqs,
            block_size=config.cache.block_size,
            steps=records,
            left_out=left_out,
            seats=recorder.slots.take_seats(),
            split=recorder.split,
            counts=self._counts(),
            totals=totals,
            usage=self._view.kv_usage,
            tokens_per_s=new / (now - since) if now > since else 0.0,
            blocks=self._blocks.cells(now),
            host=self._host.cells(now),
            queue=self._queue(now),
            first_token=first_token,
            between=between,
            tenants=tuple(self._tenants()),
            fair_share=self._view.policy.fair_share,
        )

    def _totals(self) -> Totals:
        stats = self._scheduler.stats
        return Totals(
            steps=stats.steps,
            positions=stats.planned,
            tokens=stats.sampled,
            drafted=stats.drafted,
            accepted=stats.accepted,
            admissions=stats.admissions,
            finished=stats.finished,
            preemptions=stats.preemptions,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
            swapped_out=stats.swapped_out_blocks,
            swapped_in=stats.swapped_in_blocks,
            attained=stats.slo_attained,
            missed=stats.slo_missed,
        )

    def _counts(self) -> RequestCounts:
        now = self._view.gauges()
        return RequestCounts(now.running, now.waiting, now.parked, now.swapped)

    # -- the queue ----------------------------------------------------------

    def _queue(self, now: float) -> QueueHead:
        waiting = self._view.next_waiting(MOST_QUEUED)
        listed = [self._queued(one, place, now) for place, one in enumerate(waiting, start=1)]
        return QueueHead(tuple(listed), self._view.queued)

    def _queued(self, sequence: Sequence, place: int, now: float) -> QueuedRequest:
        request = sequence.request
        return QueuedRequest(
            request_id=sequence.id[:LONGEST_ID],
            place=0 if sequence.parked else place,
            prompt=len(request.prompt),
            tenant=request.tenant[:LONGEST_ID],
            priority=request.priority,
            waited=now - sequence.arrival,
            state=sequence.state,
            reason=self._view.why_waiting(sequence),
        )

    # -- tenants ------------------------------------------------------------

    def _tenants(self) -> Iterator[TenantShare]:
        """Those that were served least, under a policy that shares by tenant."""
        service = sorted(self._view.policy.service(), key=lambda one: (one.served, one.tenant))
        if not service:
            return
        table = self._view.table
        residents = [table.sequence(slot) for slot in table.order.tolist()]
        running = Counter(one.request.tenant for one in residents)
        requests = Counter({one.id: one.request.tenant for one in residents}.values())
        for one in service[:MOST_TENANTS]:
            yield TenantShare(
                tenant=one.tenant[:LONGEST_ID],
                weight=one.weight,
                served=one.served,
                running=running[one.tenant],
                waiting=one.requests - requests[one.tenant],
            )
