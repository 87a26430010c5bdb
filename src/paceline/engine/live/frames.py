"""The messages that a live page draws: frames of an engine, and the life of one request."""

import msgspec

from paceline.core.errors import RequestError

# What the sequence in a slot does in a step, one character per slot of `StepRecord.cells`.
VACANT, IDLE, PREFILL, AGAIN = b".", b"i", b"p", b"r"
CACHED, DECODE, DRAFTS, PREEMPTED = b"c", b"d", b"s", b"x"
# What most blocks of a cell are, one character per cell of `BlockCells.cells`.
BLOCK_KINDS = b"fchs"  # free, cached, held, shared


class StepSplit(msgspec.Struct, frozen=True):
    """Seconds that the step loop spent on a step, by what it did."""

    plan: float = 0.0
    launch: float = 0.0
    wait: float = 0.0  # for the device
    commit: float = 0.0
    report: float = 0.0  # from the commit to the next plan: delivery to front ends, new requests


class StepRecord(msgspec.Struct, frozen=True):
    """A step that was committed.

    step        its number; steps of an engine count from 1
    time        when it was planned, in seconds on the engine's clock
    split       where the time of the step loop went
    rows        sequences in the step
    positions   tokens that it computed, drafts included
    prompts     rows that computed tokens of a prompt, or known tokens again after a preemption
    drafts      draft tokens that were tried
    accepted    drafts that were right
    admitted    sequences that took up a slot in the step
    preempted   requests that were preempted before the step
    tokens      tokens that it generated
    left_out    steps between the record before and this one, which were not recorded
    cells       one character per slot, from slot 0 on; missing characters at the end are vacant

    Cells: `.` vacant, `i` resident without a position in this step, `p` prefill, `r` computes
    known tokens again after a preemption, `c` first row of a sequence that found a part of its
    prompt in the cache, `d` decode, `s` decode with drafts, `x` its sequence was preempted.
    """

    step: int
    time: float
    split: StepSplit
    rows: int
    positions: int
    prompts: int
    drafts: int
    accepted: int
    admitted: int
    preempted: int
    tokens: int
    left_out: int
    cells: str


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """A sequence is in a slot: the cells of the slot are its own from `step` on.

    In JSON it is a list: [slot, step, request_id, child, prompt].
    """

    slot: int
    step: int  # the first one with a record
    request_id: str
    child: int  # which of several sequences of the request; -1: the only one
    prompt: int  # tokens of the prompt


class BlockCells(msgspec.Struct, frozen=True):
    """The blocks of a pool, each in one state; `size` is the sum of the four counts.

    Large pools are read in parts, one part per frame, so that counts and cells may be some seconds
    old (`age` at most).
    """

    size: int  # blocks
    held: int  # by one sequence
    shared: int  # by several
    cached: int  # by none; the content can be found again
    free: int  # without content
    per_cell: int  # blocks of each cell
    cells: str  # by block number: f free, c cached, h held, s shared: what most blocks of it are
    age: float = 0.0  # seconds since the oldest part was read


class QueuedRequest(msgspec.Struct, frozen=True):
    """A request that waits."""

    request_id: str
    place: int  # 1: the next to be admitted; 0: parked, no place
    prompt: int  # tokens
    tenant: str
    priority: float
    waited: float  # seconds since it arrived
    state: str  # WAITING, PREEMPTED, SWAPPED, or WAITING_FOR_… if it is parked
    reason: str  # why it got nothing in the latest step, in words


class QueueHead(msgspec.Struct, frozen=True):
    """The requests that wait, in the order of admission; parked ones come last."""

    first: tuple[QueuedRequest, ...]
    total: int  # all that wait, also those that are not listed


class RequestCounts(msgspec.Struct, frozen=True):
    """Requests by place, now."""

    running: int
    waiting: int  # could be admitted if there were room; includes `swapped`
    parked: int
    swapped: int


class Totals(msgspec.Struct, frozen=True):
    """Counted since the engine started: the difference of two frames is what happened between."""

    steps: int
    positions: int  # tokens computed, of prompts and of outputs
    tokens: int  # tokens generated
    drafted: int
    accepted: int
    admissions: int
    finished: int
    preemptions: int
    prefix_queries: int  # tokens of new requests when they were admitted
    prefix_hits: int  # tokens of these that were in the cache
    swapped_out: int  # blocks
    swapped_in: int
    attained: int = 0  # requests with targets that met them
    missed: int = 0  # those that did not


class LatencyCounts(msgspec.Struct, frozen=True):
    """`counts[i]` values lie in (bounds[i - 1], bounds[i]]; the last count has no upper bound.

    Counted since recording began: the difference of two frames is what happened between.
    """

    bounds: tuple[float, ...]  # seconds
    counts: tuple[int, ...]
    total: float  # the sum of all values


class TenantShare(msgspec.Struct, frozen=True):
    """What a tenant has got, under a policy that shares by tenant."""

    tenant: str
    weight: float
    served: float  # weighted tokens divided by the weight; equal service is equal `served`
    running: int  # sequences
    waiting: int  # requests


class Frame(msgspec.Struct, frozen=True):
    """An engine at one moment, and the steps since the frame before.

    engine       which of several engines
    run          changes when the step loop was started again; numbers then begin anew
    number       frames of a run count from 1; a gap means that frames were lost
    time         when the frame was made, in seconds on the engine's clock
    since        the time of the frame before, or when recording began
    policy       the scheduler's policy
    slots        most sequences that run at once
    block_size   tokens of a block
    steps        the latest steps of the period, oldest first; some may be left out
    left_out     steps after the last record, or with no record at all
    seats        sequences that are new in a slot since the frame before; in the first frame that a
                 page gets, and after frames that it lost, all that are needed to know every slot
    split        seconds of all steps since recording began; those with a record stand for those
                 without
    counts       requests by place
    totals       what happened since the engine started
    usage        share of device blocks that are held; exact, also for large pools
    tokens_per_s generated in the period
    blocks, host blocks of the device, and of host memory that sequences are swapped to, if any
    queue        requests that wait
    first_token  seconds from arrival to the first token, of requests that were in a slot in a step
                 with a record
    between      seconds between two tokens of a sequence, as they are committed; tokens between two
                 records share the time
    tenants      those served least come first, the others are left out; empty under policies that
                 do not share by tenant
    fair_share   what a tenant would have been served that was always here
    """

    engine: int
    run: int
    number: int
    time: float
    since: float
    policy: str
    slots: int
    block_size: int
    steps: tuple[StepRecord, ...]
    left_out: int
    seats: tuple[Seat, ...]
    split: StepSplit
    counts: RequestCounts
    totals: Totals
    usage: float
    tokens_per_s: float
    blocks: BlockCells
    host: BlockCells
    queue: QueueHead
    first_token: LatencyCounts
    between: LatencyCounts
    tenants: tuple[TenantShare, ...] = ()
    fair_share: float = 0.0


class LifePhase(msgspec.Struct, frozen=True):
    """What a request did for a while: before the engine, waiting, parked, prefill, decode,
    computing again, preempted, swapped out."""

    phase: str
    begin: float
    end: float | None  # None: it lasts
    step: int
    cause: str = ""  # of a preemption, say


class LifeMoment(msgspec.Struct, frozen=True):
    """A turn in the life of a request, with its sentence."""

    happened: str  # a value of `Happened`
    time: float
    step: int
    amount: int
    cause: str
    sentence: str


class RequestLife(msgspec.Struct, frozen=True):
    """The life of a request in one engine. Times are seconds on the engine's clock.

    request_id, engine  which request, and where it runs
    state               WAITING, RUNNING, …, FINISHED_STOPPED
    arrival, now        when it arrived / when this was asked
    prompt, known       tokens of the prompt / of prompt and output
    computed, cached    tokens computed / tokens of the prompt that were in the cache
    limit               tokens at which it ends at the latest
    preemptions         how often it was preempted
    tenant, priority    as it was submitted
    phases              what it did, one after another
    moments             turns of its life, with a sentence each
    sentences           the lines of `explain`, whose times begin when the engine took it up
    text                the beginning of the prompt; null unless the server may show it
    """

    request_id: str
    engine: int
    state: str
    arrival: float
    now: float
    prompt: int
    known: int
    computed: int
    cached: int
    limit: int
    preemptions: int
    tenant: str
    priority: float
    phases: tuple[LifePhase, ...]
    moments: tuple[LifeMoment, ...]
    sentences: tuple[str, ...]
    text: str | None = None


class StreamStart(msgspec.Struct, frozen=True):
    """The first event of a stream."""

    version: str
    model: str
    engines: int
    frame_s: float  # seconds between two frames
    kept: int  # frames that are kept for the scrubber
    wall_offset: float | None  # add it to a time of the engine to get seconds since 1970
    recording: str = ""  # the name of a file that is shown; empty: a server that runs


class StreamStatus(msgspec.Struct, frozen=True):
    """An engine cannot be asked, or can again."""

    engine: int
    trouble: str  # why; empty: it answers
    restarts: int  # how often its step loop was started again since the stream began


LATEST = -1


class FrameQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Which frames a front end wants: those of an engine after one that it has."""

    engine: int = 0
    run: int = 0
    number: int = 0  # 0: it has none; LATEST: it wants the latest one alone

    def argument(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(argument: str) -> "FrameQuestion":
        try:
            return msgspec.json.decode(argument or "[]", type=FrameQuestion)
        except msgspec.MsgspecError as error:
            raise RequestError(f"{argument!r} does not name frames: {error}") from None

    def engine_of(self, engines: int) -> int:
        """The engine that is asked, of several. RequestError if there is none."""
        if not 0 <= self.engine < engines:
            raise RequestError(f"engine is {self.engine}; there are {engines}, counted from 0")
        return self.engine


class FrameAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Frames after the one that the asker has, each in JSON; none if there is no newer one yet."""

    run: int
    number: int  # of the last frame here; without frames, of the one that the asker has
    frames: tuple[bytes, ...] = ()
    # Who was in slots before the first of them; empty if the asker has the frame before it.
    base: tuple[Seat, ...] = ()
    more: bool = False  # are there further ones?
