"""What an engine reports at the end of a turn."""

from collections.abc import Sequence as Row
from dataclasses import replace

from paceline.core.events import Happened, Moment, Stage, Timings
from paceline.core.plan import Candidates, Ended, Outputs, StepResult
from paceline.core.pooling import PooledSpan, PromptScores
from paceline.core.request import Sequence
from paceline.engine.loop.messages import Delivery, Refused
from paceline.sched.scheduler import Scheduler
from paceline.sched.view import SchedulerView


def timed(scheduler: Scheduler, ended: Ended) -> Ended:
    """Add timings and cached tokens to the end of a request.

    Call it before the next plan; after that the scheduler remembers only the latest ends.
    """
    sequence = scheduler.view.ended(ended.request_id)
    if ended.child >= 0 or sequence is None:
        return ended
    # Sequences of a group share one life; `cached` of a sequence counts only its own hits.
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


def scored(delivery: Delivery, outputs: Outputs, result: StepResult) -> Delivery:
    """Add the log-probabilities of the rows that are not stale."""
    logprob, found, rows = result.logprob, result.candidates, outputs.row
    if logprob is None and found is None:
        return delivery
    if rows is not None:
        logprob = None if logprob is None else logprob[rows]
        found = None if found is None else Candidates(found.ids[rows], found.logprob[rows])
    return replace(delivery, logprob=logprob, candidates=found)


def of_live_requests(view: SchedulerView, result: StepResult) -> StepResult:
    """Drop what was found about prompts of requests that have ended: another request may have
    their id.

    What was found of a preempted sequence is kept: its blocks may be found in the cache when
    it resumes, and are not computed again then.
    """
    if not (result.prompt or result.pooled):
        return result

    def is_live(one: PromptScores | PooledSpan) -> bool:
        serial = view.leader_serial(one.request_id)
        return serial is not None and serial <= one.serial

    prompt, pooled = filter(is_live, result.prompt), filter(is_live, result.pooled)
    return replace(result, prompt=tuple(prompt), pooled=tuple(pooled))


class TurnReport:
    """Collects requests that were refused, or ended outside a commit, until the next delivery."""

    def __init__(self) -> None:
        self.refused: list[Refused] = []
        self.ended: list[Ended] = []

    def __bool__(self) -> bool:
        return bool(self.refused or self.ended)

    def delivery(
        self,
        outputs: Outputs,
        result: StepResult | None,
        now: float,
        scheduler: Scheduler,
        broken: str = "",
    ) -> Delivery | None:
        """All of it, with what a step put out; None if there is nothing to report. `result` is
        that of the step, if one was waited for; `broken` says why the engine has stopped."""
        ended, refused = (*self.ended, *outputs.finished), tuple(self.refused)
        self.ended, self.refused = [], []
        prompt, pooled = ((), ()) if result is None else (result.prompt, result.pooled)
        if not (ended or refused or prompt or pooled or len(outputs.count)):
            return None
        delivery = Delivery(
            now,
            outputs.handle,
            outputs.ids,
            outputs.count,
            ended=tuple(timed(scheduler, end) for end in ended),
            refused=refused,
            prompt=prompt,
            pooled=pooled,
            broken=broken,
        )
        return delivery if result is None else scored(delivery, outputs, result)
