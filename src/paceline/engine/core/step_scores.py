"""The log-probabilities of a step, for those that get its tokens."""

from dataclasses import replace

from paceline.core.plan import Candidates, Outputs, StepResult
from paceline.engine.core.messages import Delivery


def scored(delivery: Delivery, outputs: Outputs, result: StepResult) -> Delivery:
    """Add the log-probabilities of the rows that are not stale."""
    logprob, found, rows = result.logprob, result.candidates, outputs.row
    if rows is not None:
        logprob = None if logprob is None else logprob[rows]
        found = None if found is None else Candidates(found.ids[rows], found.logprob[rows])
    return replace(delivery, logprob=logprob, candidates=found)
