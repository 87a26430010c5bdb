"""What a delivery has of the result of a step, beside tokens."""

from dataclasses import replace

from paceline.core.plan import Candidates, Outputs, PromptScores, StepResult
from paceline.core.pooling import PooledSpan
from paceline.engine.core.messages import Delivery
from paceline.sched.view import SchedulerView


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
