"""The duration of each stage of an ended request."""

from collections.abc import Sequence as Row
from dataclasses import replace

from paceline.core.events import Happened, Moment
from paceline.core.plan import Ended, Stage, Timings
from paceline.core.request import Sequence
from paceline.sched.scheduler import Scheduler


def timed(scheduler: Scheduler, ended: Ended) -> Ended:
    """Add timings and cached tokens to the end of a request.

    Call it before the next plan; after that the scheduler remembers only the latest ends.
    """
    sequence = scheduler.view.ended(ended.request_id)
    if ended.child >= 0 or sequence is None:
        return ended
    # Sequences of a family share one life; `cached` of a sequence counts only its own hits.
    cached = next((one.amount for one in sequence.life if one.happened is Happened.ADMITTED), 0)
    cached = min(cached, len(sequence.request.prompt))  # one that continued may find outputs too
    return replace(ended, timings=timings(sequence), cached=cached)


def timings(sequence: Sequence) -> Timings:
    """Stages run from arrival to the end; the last stage that was reached takes the rest.

    One that continues the work of a dead engine waits from when this engine got it. Its time in the
    dead engine belongs to no stage, since that engine alone knew what it did then. It may have had
    its first token there.
    """
    life = sequence.life
    end = life[-1].time
    admitted = first(life, Happened.ADMITTED, end)
    token = first(life, Happened.CONTINUED, first(life, Happened.FIRST_TOKEN, end))
    queued = sequence.queued_at if sequence.request.generated else sequence.arrival
    return Timings(
        queue_s=admitted - queued,
        prefill_s=token - admitted,
        decode_s=end - token,
        total_s=end - sequence.arrival,
        preemptions=sequence.preemptions,
        reached=last_stage(life),
    )


def last_stage(life: Row[Moment]) -> Stage:
    happened = {moment.happened for moment in life}
    if happened & {Happened.FIRST_TOKEN, Happened.CONTINUED}:
        return "decode"
    return "prefill" if Happened.ADMITTED in happened else "queue"


def first(life: Row[Moment], happened: Happened, otherwise: float) -> float:
    return next((moment.time for moment in life if moment.happened is happened), otherwise)
